//! The PDUs of the login phase.

use millrace_admission::Account;
use millrace_iscsi::stream::Segment;
use millrace_iscsi::{
    login::{Established, LoginPdu},
    pdu::Bhs,
};

use super::Link;
use crate::{end::End, login::LoginTransport, reserve::Receives};

impl LoginTransport for Link {
    fn receives(&self) -> Receives {
        Receives::default()
    }

    async fn receive(&mut self) -> Result<Option<(Bhs, Vec<u8>)>, End> {
        Ok(Some(self.input.receive(&mut *self.stream).await?))
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

    fn settle(&mut self, _account: &mut Account) {}
}
