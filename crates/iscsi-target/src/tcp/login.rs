//! The PDUs of the login phase.

use std::future::poll_fn;

use millrace_iscsi::{
    login::{Established, LoginPdu},
    pdu::{Bhs, Part},
};

use super::{Link, output::Segment};
use crate::{end::End, login::LoginTransport};

impl LoginTransport for Link {
    async fn receive(&mut self) -> Result<(Bhs, Vec<u8>), End> {
        let mut data = Vec::new();
        loop {
            let (part, missing) = self.input.reader.next();
            match part {
                Part::End => break,
                Part::Data => {
                    // At most MAX_LOGIN_DATA bytes.
                    let at = data.len();
                    data.resize(at + missing, 0);
                    let to = &mut data[at..];
                    let n = poll_fn(|cx| self.input.poll_part(cx, &mut *self.stream, &mut [to])).await?;
                    data.truncate(at + n);
                }
                _ => {
                    poll_fn(|cx| self.input.poll_part(cx, &mut *self.stream, &mut [])).await?;
                }
            }
        }
        let bhs = self.input.reader.header().copied().unwrap_or([0; 48]);
        self.input.reader.finish();
        Ok((bhs, data))
    }

    async fn send(&mut self, pdu: LoginPdu, established: Option<&Established>) -> Result<(), End> {
        self.output.push(&pdu.bhs, Segment::Bytes(pdu.data), 0);
        self.flush().await.map_err(End::Stream)?;
        if let Some(Established { parameters, .. }) = established {
            let (header, data) = (parameters.header_digest, parameters.data_digest);
            self.input.reader.set(parameters.max_receive_data, header, data);
            (self.output.header_digest, self.output.data_digest) = (header, data);
        }
        Ok(())
    }
}
