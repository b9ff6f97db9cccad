//! iWARP in user space (RFC 5040, 5041, 5044, 6581) over TCP.
