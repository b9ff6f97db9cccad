//! SEQUENCE compared with a model: clients that retry over connections that delay, repeat, reorder and lose requests
//! and replies.

use proptest::prelude::*;

use super::*;

const SLOTS: usize = 3;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// The client sends a new request in a slot that has none outstanding.
    Send(usize),
    /// The client sends the outstanding request of a slot again.
    Retry(usize),
    /// The client sends another request with the sequence number of the outstanding one.
    FalseRetry(usize),
    /// A request that was sent at any time arrives, perhaps not for the first time.
    Deliver(usize),
    /// An execution ends; the slot keeps the reply, or not.
    Finish(usize, bool),
    /// An execution is dropped.
    Abandon(usize),
    /// A reply that was sent at any time arrives, perhaps not for the first time.
    Receive(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let slot = 0..SLOTS;
    let step = prop_oneof![
        4 => slot.clone().prop_map(Step::Send),
        3 => slot.clone().prop_map(Step::Retry),
        1 => slot.prop_map(Step::FalseRetry),
        // Recent messages most of the time.
        8 => prop_oneof![3 => 0..3_usize, 1 => 0..1000_usize].prop_map(Step::Deliver),
        6 => (0..8_usize, any::<bool>()).prop_map(|(n, cached)| Step::Finish(n, cached)),
        1 => (0..8_usize).prop_map(Step::Abandon),
        6 => prop_oneof![3 => 0..3_usize, 1 => 0..1000_usize].prop_map(Step::Receive),
    ];
    prop::collection::vec(step, 1..200)
}

/// A request as the network carries it. `id` identifies it, and is its digest.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Sent {
    slot: usize,
    sequence: u32,
    id: u64,
}

/// The state of the last request of a correct slot.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Last {
    None,
    Executing,
    Kept,
    Forgotten,
}

/// The answer of a correct server.
#[derive(Debug, PartialEq)]
enum Answer {
    Executed,
    Replay(u64),
    Forgotten,
    Refused(Status),
}

struct Model {
    session: Arc<Session<u64>>,
    /// The client: sequence number of the last request of each slot, and the request if it is outstanding.
    client: Vec<(u32, Option<Sent>)>,
    /// The server: the last request of each slot.
    server: Vec<(Option<Sent>, Last)>,
    requests: Vec<Sent>,
    replies: Vec<Sent>,
    executing: Vec<(Sent, Execution<u64>)>,
    executed: std::collections::HashMap<u64, u32>,
    received: u64,
    next: u64,
}

/// The n-th element from the end, modulo the length.
fn recent<T: Copy>(list: &[T], n: usize) -> Option<T> {
    (!list.is_empty()).then(|| list[list.len() - 1 - n % list.len()])
}

impl Model {
    fn new() -> Self {
        Self {
            session: client(&state(), "a", S(0)),
            client: vec![(0, None); SLOTS],
            server: vec![(None, Last::None); SLOTS],
            requests: Vec::new(),
            replies: Vec::new(),
            executing: Vec::new(),
            executed: std::collections::HashMap::new(),
            received: 0,
            next: 0,
        }
    }

    fn expected(&self, sent: Sent) -> Answer {
        let (last, outcome) = self.server[sent.slot];
        let sequence = last.map_or(0, |last| last.sequence);
        if sent.sequence == sequence + 1 && outcome != Last::Executing {
            return Answer::Executed;
        }
        let Some(last) = last.filter(|last| last.sequence == sent.sequence) else {
            return Answer::Refused(Status::SeqMisordered);
        };
        match outcome {
            Last::Executing => Answer::Refused(Status::Delay),
            _ if last.id != sent.id => Answer::Refused(Status::SeqFalseRetry),
            Last::Kept => Answer::Replay(sent.id),
            _ => Answer::Forgotten,
        }
    }

    fn deliver(&mut self, sent: Sent) {
        let expected = self.expected(sent);
        let answer = match self.session.sequence(&request(sent.slot as u32, sent.sequence), sent.id, S(0)) {
            Ok(Sequence::Execute(execution, _)) => {
                *self.executed.entry(sent.id).or_default() += 1;
                self.server[sent.slot] = (Some(sent), Last::Executing);
                self.executing.push((sent, execution));
                Answer::Executed
            }
            Ok(Sequence::Replay(id)) => {
                self.replies.push(sent);
                Answer::Replay(id)
            }
            // RETRY_UNCACHED_REP ends the request for the client, too.
            Ok(Sequence::Uncached(_)) => {
                self.replies.push(sent);
                Answer::Forgotten
            }
            Err(status) => Answer::Refused(status),
        };
        assert_eq!(answer, expected, "{sent:?}");
        assert!(self.executed.values().all(|times| *times == 1), "a request was executed twice");
    }

    fn send(&mut self, slot: usize, sequence: u32) -> Sent {
        self.next += 1;
        let sent = Sent { slot, sequence, id: self.next };
        self.requests.push(sent);
        sent
    }

    fn end(&mut self, n: usize, last: Last) {
        if self.executing.is_empty() {
            return;
        }
        let (sent, execution) = self.executing.swap_remove(n % self.executing.len());
        match last {
            Last::Forgotten if n.is_multiple_of(2) => drop(execution),
            _ => {
                execution.finish((last == Last::Kept).then_some(sent.id));
                self.replies.push(sent);
            }
        }
        self.server[sent.slot].1 = last;
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Send(slot) if self.client[slot].1.is_none() => {
                let sequence = self.client[slot].0 + 1;
                self.client[slot] = (sequence, Some(self.send(slot, sequence)));
            }
            Step::Retry(slot) => self.requests.extend(self.client[slot].1),
            Step::FalseRetry(slot) if self.client[slot].1.is_some() => {
                let (sequence, _) = self.client[slot];
                // Only after the true one arrived: otherwise this one would be the true one.
                if self.server[slot].0.is_some_and(|last| last.sequence == sequence) {
                    self.send(slot, sequence);
                }
            }
            Step::Deliver(n) => {
                if let Some(sent) = recent(&self.requests, n) {
                    self.deliver(sent);
                }
            }
            Step::Finish(n, kept) => self.end(n, if kept { Last::Kept } else { Last::Forgotten }),
            Step::Abandon(n) => self.end(n * 2, Last::Forgotten),
            Step::Receive(n) => {
                let Some(reply) = recent(&self.replies, n) else { return };
                if self.client[reply.slot].1 == Some(reply) {
                    self.client[reply.slot].1 = None;
                    self.received += 1;
                }
            }
            _ => {}
        }
    }

    /// Delivers the outstanding requests: each request is executed exactly once and answered.
    fn settle(&mut self) {
        while !self.executing.is_empty() {
            self.end(1, Last::Kept);
        }
        let outstanding: Vec<_> = self.client.iter().filter_map(|(_, sent)| *sent).collect();
        for sent in outstanding {
            self.deliver(sent);
            assert_eq!(self.executed.get(&sent.id), Some(&1));
        }
        assert!(self.received <= self.executed.len() as u64);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn every_request_is_executed_exactly_once(steps in steps()) {
        let mut model = Model::new();
        for step in steps {
            model.run(step);
        }
        model.settle();
    }
}
