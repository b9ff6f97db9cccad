//! rpcrdma
