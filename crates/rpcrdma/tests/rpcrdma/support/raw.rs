//! A bare queue pair that sends arbitrary bytes and returns received ones.

use std::{collections::VecDeque, future::poll_fn, task::Poll, time::Duration};

use millrace_buffer::{Arena, Buffer, Views};
use millrace_rdma::{
    Access, Completion, ConnectionError, ExposedRegion, Memory, MemoryRegion, QueuePair, Segment,
    SendRequest, SteeringTag, WriteRequest,
};
use millrace_rpcrdma::{Body, Header, Lists};

pub struct Raw {
    pub qp: Box<dyn QueuePair>,
    pub arena: Arena,
    received: VecDeque<Buffer>,
    read: VecDeque<Vec<u8>>,
}

impl Raw {
    pub fn new(mut qp: Box<dyn QueuePair>, arena: &Arena) -> Self {
        for _ in 0..200 {
            qp.post_receive(arena.alloc(4096).unwrap()).unwrap();
        }
        Self { qp, arena: arena.clone(), received: VecDeque::new(), read: VecDeque::new() }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.send_invalidating(bytes, None);
    }

    pub fn send_invalidating(&mut self, bytes: &[u8], invalidate: Option<SteeringTag>) {
        let data = self.arena.copy_from(bytes).unwrap().into();
        // Fails on a closed connection, which the next receive reports.
        let _ = self.qp.post_send(SendRequest { data, invalidate, solicited: false, signaled: None });
    }

    pub fn write(&mut self, bytes: &[u8], to: Segment) {
        let data: Views = self.arena.copy_from(bytes).unwrap().into();
        let to = Segment { length: bytes.len() as u32, ..to };
        self.qp.post_write(WriteRequest { data, to }).unwrap();
    }

    /// A header followed by bytes.
    pub fn message(header: &Header, rest: &[u8]) -> Vec<u8> {
        let mut b = vec![0; header.encoded_len()];
        header.encode(&mut b);
        b.extend_from_slice(rest);
        b
    }

    pub fn expose(&self, bytes: &[u8], access: Access) -> ExposedRegion {
        let mut b = self.arena.alloc(bytes.len()).unwrap();
        b.copy_from_slice(bytes);
        MemoryRegion::new(self.qp.domain(), Memory::Owned(b)).expose(access).unwrap()
    }

    /// The next message, or the reason for the end of the connection.
    pub async fn receive(&mut self) -> Result<Vec<u8>, ConnectionError> {
        let limit = Duration::from_secs(20);
        tokio::time::timeout(limit, self.next()).await.expect("no message, and no end of the connection")
    }

    /// As [`Self::receive`] without a time limit, on any executor.
    pub async fn next(&mut self) -> Result<Vec<u8>, ConnectionError> {
        while self.received.is_empty() {
            self.turn().await?;
        }
        Ok(self.received.pop_front().unwrap().to_vec())
    }

    /// The data of the next completed RDMA Read, or the reason for the end of the connection.
    #[allow(dead_code)] // For the tests of protocols whose responders expose memory.
    pub async fn read_done(&mut self) -> Result<Vec<u8>, ConnectionError> {
        let read = async {
            while self.read.is_empty() {
                self.turn().await?;
            }
            Ok(self.read.pop_front().unwrap())
        };
        tokio::time::timeout(Duration::from_secs(20), read).await.expect("no Read done, and no end")
    }

    /// Processes the next completions.
    async fn turn(&mut self) -> Result<(), ConnectionError> {
        let mut out = Vec::new();
        {
            poll_fn(|cx| match self.qp.poll(cx, &mut out) {
                Poll::Ready(Ok(())) if out.is_empty() => Poll::Pending,
                other => other,
            })
            .await?;
            for c in out.drain(..) {
                match c {
                    Completion::Received { buffer, .. } => self.received.push_back(buffer),
                    Completion::Read { sink, .. } => {
                        self.read.push_back(sink.iter().flat_map(|b| b.to_vec()).collect());
                    }
                    Completion::Sent(_) => {}
                }
            }
        }
        Ok(())
    }

    /// The header and the remaining bytes of the next message.
    pub async fn receive_header(&mut self) -> (Header, Vec<u8>) {
        let b = self.receive().await.expect("the connection is up");
        let (header, at) = Header::decode(&b, 1000).expect("a well-formed header");
        (header, b[at..].to_vec())
    }

    /// Sends posted work without waiting.
    pub async fn push(&mut self) {
        poll_fn(|cx| {
            self.qp.flush(cx);
            Poll::Ready(())
        })
        .await;
    }
}

pub fn msg(xid: u32, lists: Lists) -> Header {
    Header::new(xid, 32, Body::Msg(lists))
}

pub fn nomsg(xid: u32, lists: Lists) -> Header {
    Header::new(xid, 32, Body::NoMsg(lists))
}
