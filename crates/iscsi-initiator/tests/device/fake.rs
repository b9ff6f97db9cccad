//! A target whose answers a test sets.

use std::{
    future::poll_fn,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use millrace_iscsi::stream::{Input, Output, Segment};
use millrace_iscsi::{
    login::{Admission, Authority, Grant, Identity, Progress, Refusal, Status, TargetConfig, TargetLogin},
    name::TargetAddress,
    negotiation::{DigestPolicy, Parameters, Settings},
    pdu::{
        DataIn, DataInStatus, LogoutResponse, LogoutResult, NopIn, Numbers, PduReader, R2t, RESERVED_TAG,
        Request, Residual, Response, ScsiCommand, ScsiResponse, TextResponse,
    },
};
use millrace_runtime::{
    BoxFuture, ByteStream, LocalPort, RuntimeRef, StreamListener, StreamProvider, memory_stream,
};
use millrace_scsi::{AdditionalSense, Sense, SenseKey};

/// Number of blocks of the disk, of 512 bytes.
const BLOCKS: u64 = 2048;

/// An answer of the target.
#[derive(Clone)]
pub(crate) enum Answer {
    /// Data-In with the final status GOOD: the difference from the command's tag, offset, and data.
    Data(u32, u32, Vec<u8>, Residual),
    /// A status with the data segment of the SCSI Response, and the residual count.
    Status(u8, Vec<u8>, Residual),
    /// An R2T with offset and length.
    R2t(u32, u32),
    /// Bytes instead of a PDU.
    Raw(Vec<u8>),
}

/// CHECK CONDITION.
pub(crate) fn check(key: SenseKey, additional: AdditionalSense) -> Answer {
    check_with(&Sense::new(key, additional))
}

/// CHECK CONDITION with this sense data.
pub(crate) fn check_with(sense: &Sense) -> Answer {
    let sense = sense.to_bytes();
    let mut data = (sense.len() as u16).to_be_bytes().to_vec();
    data.extend(sense);
    Answer::Status(2, data, Residual::None)
}

type Script = dyn Fn(&ScsiCommand) -> Vec<Answer> + Send + Sync;

/// A host with such a target.
pub(crate) struct Fake {
    rt: RuntimeRef,
    script: Arc<Script>,
    text: Vec<u8>,
    redirect: bool,
    digests: DigestPolicy,
    pub(crate) connections: AtomicU64,
}

impl Fake {
    /// A target that answers commands other than those that identify a disk with `script`.
    pub(crate) fn new(
        rt: &RuntimeRef,
        script: impl Fn(&ScsiCommand) -> Vec<Answer> + Send + Sync + 'static,
    ) -> Self {
        let connections = AtomicU64::new(0);
        let (redirect, digests) = (false, DigestPolicy::Accept);
        Self {
            rt: Arc::clone(rt),
            script: Arc::new(script),
            text: Vec::new(),
            redirect,
            digests,
            connections,
        }
    }

    /// Answers text requests with `text`.
    pub(crate) fn with_text(mut self, text: &[u8]) -> Self {
        self.text = text.to_vec();
        self
    }

    /// Has no digests.
    pub(crate) fn refusing_digests(mut self) -> Self {
        self.digests = DigestPolicy::Refuse;
        self
    }

    /// Redirects each login to itself.
    pub(crate) fn redirecting(mut self) -> Self {
        self.redirect = true;
        self
    }
}

impl StreamProvider for Fake {
    fn connect(&self, _: LocalPort, _: SocketAddr) -> BoxFuture<'static, io::Result<Box<dyn ByteStream>>> {
        self.connections.fetch_add(1, Ordering::Relaxed);
        let (ours, theirs) = memory_stream(1 << 16, usize::MAX);
        let peer = Peer {
            stream: Box::new(theirs),
            input: Input::new(PduReader::new(1 << 20)),
            output: Output::default(),
            numbers: Numbers::default(),
        };
        let (script, text, redirect) = (Arc::clone(&self.script), self.text.clone(), self.redirect);
        let settings = Settings {
            initial_r2t: false,
            header_digest: self.digests,
            data_digest: self.digests,
            ..Settings::default()
        };
        self.rt.spawn(
            "fake",
            Box::pin(async move { peer.serve(&*script, &text, redirect, settings).await.unwrap_or(()) }),
        );
        Box::pin(async move { Ok(Box::new(ours) as Box<dyn ByteStream>) })
    }

    fn listen(&self, _: SocketAddr) -> io::Result<Box<dyn StreamListener>> {
        Err(io::ErrorKind::Unsupported.into())
    }
}

struct Gate {
    redirect: bool,
}

impl Authority for Gate {
    fn admit(&mut self, _: &Identity) -> Result<Admission, Refusal> {
        let address = TargetAddress { host: "192.0.2.1".into(), port: 3260, tag: None };
        match self.redirect {
            true => Err(Refusal::Redirect { address, permanent: false }),
            false => Ok(Admission { chap: None }),
        }
    }

    fn establish(&mut self, _: &Identity, _: &Parameters) -> Result<Grant, Status> {
        Ok(Grant { tsih: 1, window: 32 })
    }
}

/// One connection.
struct Peer {
    stream: Box<dyn ByteStream>,
    input: Input,
    output: Output,
    numbers: Numbers,
}

impl Peer {
    /// Serves to the end; `None` when the initiator has left.
    async fn serve(mut self, script: &Script, text: &[u8], redirect: bool, settings: Settings) -> Option<()> {
        let config = TargetConfig { settings, portal_group: 1, stat_sn: 1, random: [1; 33] };
        let mut login = TargetLogin::new(config);
        let mut gate = Gate { redirect };
        loop {
            let (bhs, data) = self.input.receive(&mut *self.stream).await.ok()?;
            let reply = login.receive(&bhs, &data, &mut gate);
            if let Some(pdu) = reply.pdu {
                self.output.push(&pdu.bhs, Segment::Bytes(pdu.data), 0);
                self.flush().await?;
            }
            match reply.progress {
                Progress::Continue => {}
                Progress::Failed(_) => return None,
                Progress::Established(established) => {
                    self.numbers.stat_sn = established.stat_sn;
                    break;
                }
            }
        }
        loop {
            let (bhs, _) = self.input.receive(&mut *self.stream).await.ok()?;
            match Request::decode(&bhs).unwrap() {
                Request::ScsiCommand(command) => {
                    self.numbers.exp_cmd_sn = command.numbers.cmd_sn.wrapping_add(1);
                    for answer in honest(&command).unwrap_or_else(|| script(&command)) {
                        self.answer(&command, answer);
                    }
                }
                Request::NopOut(nop) if nop.itt != RESERVED_TAG => {
                    let numbers = self.status();
                    self.push(
                        &Response::NopIn(NopIn { lun: 0, itt: nop.itt, ttt: RESERVED_TAG, numbers }),
                        vec![],
                    );
                }
                Request::Text(request) => {
                    let (itt, numbers) = (request.itt, self.status());
                    let pdu = TextResponse {
                        last: true,
                        continued: false,
                        lun: 0,
                        itt,
                        ttt: RESERVED_TAG,
                        numbers,
                    };
                    self.push(&Response::Text(pdu), text.to_vec());
                }
                Request::Logout(request) => {
                    let (itt, numbers) = (request.itt, self.status());
                    let result = LogoutResult::CLOSED;
                    let pdu = LogoutResponse { result, itt, numbers, time2wait: 0, time2retain: 0 };
                    self.push(&Response::Logout(pdu), vec![]);
                }
                _ => {}
            }
            self.flush().await?;
        }
    }

    async fn flush(&mut self) -> Option<()> {
        poll_fn(|cx| self.output.poll_flush(cx, &mut *self.stream)).await.ok()
    }

    fn push(&mut self, response: &Response, data: Vec<u8>) {
        self.output.push(&response.encode(data.len() as u32), Segment::Bytes(data), 0);
    }

    /// The numbers of a PDU with a status.
    fn status(&mut self) -> Numbers {
        self.numbers.max_cmd_sn = self.numbers.exp_cmd_sn.wrapping_add(31);
        let numbers = self.numbers;
        self.numbers.stat_sn = numbers.stat_sn.wrapping_add(1);
        numbers
    }

    fn answer(&mut self, command: &ScsiCommand, answer: Answer) {
        let itt = command.itt;
        match answer {
            Answer::Data(other, offset, data, residual) => {
                let (itt, numbers) = (itt.wrapping_add(other), self.status());
                let status = Some(DataInStatus { status: 0, residual });
                let pdu = DataIn { last: true, status, itt, numbers, data_sn: 0, offset };
                self.push(&Response::DataIn(pdu), data);
            }
            Answer::Status(status, data, residual) => {
                let numbers = self.status();
                let pdu = ScsiResponse { response: 0, status, itt, numbers, exp_data_sn: 0, residual };
                self.push(&Response::Scsi(pdu), data);
            }
            Answer::R2t(offset, length) => {
                let numbers = self.numbers;
                self.push(
                    &Response::R2t(R2t { lun: 0, itt, ttt: 7, numbers, r2t_sn: 0, offset, length }),
                    vec![],
                );
            }
            Answer::Raw(bytes) => {
                // The header states the length of a data segment that does not follow.
                let mut bhs = [0xff; 48];
                bhs[..bytes.len()].copy_from_slice(&bytes);
                self.output.push(&bhs, Segment::Bytes(Vec::new()), 0);
            }
        }
    }
}

/// The answers to the commands that identify a disk.
fn honest(command: &ScsiCommand) -> Option<Vec<Answer>> {
    let data = match command.cdb[..2] {
        [0x00, _] => return Some(vec![Answer::Status(0, vec![], Residual::None)]),
        [0x12, 0] => [&[0, 0, 6, 2, 31, 0, 0, 0][..], b"FAKE    ", b"DISK            ", b"1   "].concat(),
        [0x9e, _] => {
            let mut data = (BLOCKS - 1).to_be_bytes().to_vec();
            data.extend(512_u32.to_be_bytes());
            data.resize(32, 0);
            data
        }
        [0x12, _] | [0x5a, _] => {
            return Some(vec![check(SenseKey::IllegalRequest, AdditionalSense::INVALID_FIELD_IN_CDB)]);
        }
        _ => return None,
    };
    let residual = match command.expected - data.len() as u32 {
        0 => Residual::None,
        missing => Residual::Underflow(missing),
    };
    Some(vec![Answer::Data(0, 0, data, residual)])
}
