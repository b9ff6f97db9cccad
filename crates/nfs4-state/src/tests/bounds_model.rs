//! The numbers of client records of each address, compared with a reference model in random histories.

use proptest::prelude::*;

use super::*;

const CLIENTS: usize = 16;
/// Maximum number of clients of one address.
const OF_ADDRESS: usize = 12;
const LEASE: Duration = Duration::from_secs(90);

#[derive(Debug, Clone, Copy)]
enum Step {
    /// A new client of an address.
    Mount(u8),
    /// The client at this index, modulo their number, opens a file.
    Hold(usize),
    Renew(usize),
    Unmount(usize),
    /// Seconds that pass.
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        8 => prop_oneof![3 => Just(1), 1 => 2..5_u8].prop_map(Step::Mount),
        4 => any::<usize>().prop_map(Step::Hold),
        2 => any::<usize>().prop_map(Step::Renew),
        1 => any::<usize>().prop_map(Step::Unmount),
        2 => (1..60_u64).prop_map(Step::Wait),
    ];
    proptest::collection::vec(step, 1..120)
}

struct Known {
    address: u8,
    session: Arc<Session<u64>>,
    /// Sequence number of the last request.
    number: u32,
    renewed: Duration,
    holds: bool,
}

#[derive(Default)]
struct Model {
    clients: Vec<Known>,
    now: Duration,
}

impl Model {
    fn of(&self, address: u8) -> usize {
        self.clients.iter().filter(|known| known.address == address).count()
    }

    /// The client that a new one of `address` replaces, if any.
    ///
    /// # Errors
    /// There is no room.
    fn replaced(&self, address: u8) -> Result<Option<usize>, Status> {
        let own = self.of(address);
        if own < (CLIENTS - self.clients.len()) * 3 {
            return Ok(None);
        }
        let oldest = |may_go: &dyn Fn(&Known) -> bool| {
            let candidates = self.clients.iter().enumerate().filter(|(_, known)| may_go(known));
            // The latest of equally old ones.
            candidates.max_by_key(|(_, known)| self.now - known.renewed).map(|(n, _)| n)
        };
        let heaviest = (1..5).max_by_key(|n| (self.of(*n), *n)).filter(|n| self.of(*n) > 2 * (own + 1));
        let has_little = own == 0 || heaviest.is_some();
        let expired =
            |known: &Known| (has_little || known.address == address) && self.now - known.renewed > LEASE;
        let of_heaviest = |known: &Known| Some(known.address) == heaviest;
        let idle_of_heaviest = |known: &Known| of_heaviest(known) && !known.holds;
        let idle = |known: &Known| known.address == address && !known.holds;
        let order: [&dyn Fn(&Known) -> bool; 4] = [&expired, &idle_of_heaviest, &idle, &of_heaviest];
        order.into_iter().find_map(oldest).map(Some).ok_or(Status::Delay)
    }

    fn execute(&mut self, state: &State<u64>, step: Step, number: usize) {
        let len = self.clients.len();
        let at = |n: usize| n.checked_rem(len);
        match step {
            Step::Wait(seconds) => self.now += S(seconds),
            Step::Mount(address) => self.mount(state, address, number),
            Step::Hold(n) => {
                let Some(known) = at(n).map(|n| &mut self.clients[n]).filter(|known| !known.holds) else {
                    return;
                };
                state.reclaim_complete(known.session.client()).unwrap();
                let request = OpenRequest {
                    owner: b"o",
                    file: b"f",
                    access: 1,
                    deny: 0,
                    reclaim: false,
                    reserved: None,
                };
                state.open(known.session.client(), &request, self.now).unwrap();
                known.holds = true;
            }
            Step::Renew(n) => {
                let Some(known) = at(n).map(|n| &mut self.clients[n]) else { return };
                known.number += 1;
                assert_eq!(renew(&known.session, known.number, self.now), Ok(()));
                known.renewed = self.now;
            }
            Step::Unmount(n) => {
                let Some(n) = at(n).filter(|n| !self.clients[*n].holds) else { return };
                let known = self.clients.remove(n);
                state.destroy_session(known.session.id()).unwrap();
                assert_eq!(state.destroy_client(known.session.client().id()), Ok(()));
            }
        }
    }

    fn mount(&mut self, state: &State<u64>, address: u8, number: usize) {
        let expected = self.replaced(address);
        let was_new = self.of(address) == 0 && self.clients.len() < CLIENTS;
        let mounted = client_of(state, address, &format!("client {number}"), self.now);
        assert_eq!(mounted.as_ref().err().copied(), expected.err(), "address {address}");
        assert!(!was_new || mounted.is_ok(), "there is always room for the first client of an address");
        if let Ok(Some(n)) = expected {
            assert!(self.clients.remove(n).session.is_destroyed());
        }
        if let Ok(session) = mounted {
            self.clients.push(Known { address, session, number: 0, renewed: self.now, holds: false });
        }
    }

    fn check(&self) {
        assert!(self.clients.len() <= CLIENTS);
        for address in 1..5 {
            assert!(self.of(address) <= OF_ADDRESS, "{} clients of {address}", self.of(address));
        }
        assert!(self.clients.iter().all(|known| !known.session.is_destroyed()), "another one was removed");
    }
}

proptest! {
    #[test]
    fn addresses_get_the_client_records_of_the_model(steps in steps()) {
        let state = with_limits(Limits { clients: CLIENTS, lease: LEASE, ..limits() });
        let mut model = Model::default();
        for (number, step) in steps.into_iter().enumerate() {
            model.execute(&state, step, number);
            model.check();
        }
    }
}
