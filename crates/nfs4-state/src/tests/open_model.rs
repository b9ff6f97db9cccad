//! Opens compared with a list of them.

use millrace_nfs::v4::Stateid;
use proptest::prelude::*;

use super::*;

const CLIENTS: usize = 3;
const FILES: usize = 2;

#[derive(Debug, Clone, Copy)]
enum Step {
    /// Client, owner, file, access, deny.
    Open(usize, u8, usize, u32, u32),
    /// Client, any stateid, its age, access, deny.
    Downgrade(usize, usize, u32, u32, u32),
    /// Client, any stateid, its age.
    Close(usize, usize, u32),
    /// Client, any stateid, its age, file, whether it is a WRITE.
    Check(usize, usize, u32, usize, bool),
    /// Client, file, whether the stateid is all ones, whether it is a WRITE.
    Anonymous(usize, usize, bool, bool),
    Test(usize, usize, u32),
    Free(usize, usize, u32),
    Revoke(usize),
    Restart(usize),
    Renew(usize),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (c, id, f) = (0..CLIENTS, prop_oneof![3 => 0..4_usize, 1 => 0..50_usize], 0..FILES);
    // The age of a stateid: mostly 0, the current seqid; `u32::MAX` is a seqid that does not exist yet.
    let age = prop_oneof![6 => Just(0_u32), 1 => Just(1), 1 => Just(u32::MAX)];
    let (access, deny) = (1..4_u32, prop_oneof![3 => Just(0_u32), 1 => 1..4_u32]);
    let stateid = (c.clone(), id, age);
    let share = (access, deny);
    let step = prop_oneof![
        10 => (c.clone(), 0..2_u8, f.clone(), share.clone())
            .prop_map(|(c, o, f, (a, d))| Step::Open(c, o, f, a, d)),
        4 => (stateid.clone(), share).prop_map(|((c, id, age), (a, d))| Step::Downgrade(c, id, age, a, d)),
        4 => stateid.clone().prop_map(|(c, id, age)| Step::Close(c, id, age)),
        6 => (stateid.clone(), f.clone(), any::<bool>())
            .prop_map(|((c, id, age), f, w)| Step::Check(c, id, age, f, w)),
        2 => (c.clone(), f.clone(), any::<bool>(), any::<bool>())
            .prop_map(|(c, f, ones, w)| Step::Anonymous(c, f, ones, w)),
        2 => stateid.clone().prop_map(|(c, id, age)| Step::Test(c, id, age)),
        2 => stateid.prop_map(|(c, id, age)| Step::Free(c, id, age)),
        1 => f.prop_map(Step::Revoke),
        1 => c.clone().prop_map(Step::Restart),
        3 => c.prop_map(Step::Renew),
        2 => prop_oneof![Just(40_u64), Just(100)].prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 1..80)
}

/// An open or a revoked one.
#[derive(Debug, Clone)]
struct Open {
    client: ClientId,
    owner: u8,
    file: usize,
    /// The arguments of each OPEN that is in effect.
    shares: Vec<(u32, u32)>,
    id: Stateid,
    revoked: bool,
}

impl Open {
    fn union(shares: &[(u32, u32)]) -> (u32, u32) {
        shares.iter().fold((0, 0), |(a, d), (access, deny)| (a | access, d | deny))
    }
}

struct Model {
    state: State<u64>,
    sessions: Vec<Arc<Session<u64>>>,
    sequences: Vec<u32>,
    renewed: Vec<Duration>,
    now: Duration,
    verifier: u8,
    opens: Vec<Open>,
    /// All stateids ever seen, for requests that use old ones.
    seen: Vec<Stateid>,
}

const OWNERS: [&str; CLIENTS] = ["a", "b", "c"];

impl Model {
    fn new() -> Self {
        let state = state();
        let sessions = OWNERS.iter().map(|owner| ready(&state, owner, S(0))).collect();
        let (sequences, renewed) = (vec![0; CLIENTS], vec![S(0); CLIENTS]);
        Self { state, sessions, sequences, renewed, now: S(0), verifier: 1, opens: vec![], seen: vec![] }
    }

    fn id(&self, client: usize) -> ClientId {
        self.sessions[client].client().id()
    }

    fn restart(&mut self, client: usize) {
        self.verifier += 1;
        let id = self.state.exchange_id(&identify(OWNERS[client], self.verifier), self.now).unwrap();
        let old = self.id(client);
        let created = self.state.create_session(&create(id.client, 1), self.now).unwrap();
        self.opens.retain(|open| open.client != old);
        self.state.reclaim_complete(self.state.session(created.session).unwrap().client()).unwrap();
        self.sessions[client] = self.state.session(created.session).unwrap();
        (self.sequences[client], self.renewed[client]) = (0, self.now);
    }

    /// Each operation follows a SEQUENCE, which renews the lease. A client that was removed starts again.
    fn renew(&mut self, client: usize) {
        self.sequences[client] += 1;
        if renew(&self.sessions[client], self.sequences[client], self.now).is_err() {
            let old = self.id(client);
            assert!(!self.opens.iter().any(|open| open.client == old), "the model kept the client");
            self.restart(client);
        }
        self.renewed[client] = self.now;
    }

    /// Whether an open excludes the access. Expired clients that do are removed, in the order of client IDs and
    /// stateids, until one is not expired.
    fn excluded(&mut self, file: usize, own: Option<[u8; 12]>, access: u32, deny: u32) -> bool {
        loop {
            let excludes = |open: &&Open| {
                let (a, d) = Open::union(&open.shares);
                !open.revoked
                    && open.file == file
                    && Some(open.id.other) != own
                    && (access & d != 0 || deny & a != 0)
            };
            let holder = self.opens.iter().filter(excludes).min_by_key(|open| open.id.other);
            let Some(holder) = holder.map(|open| open.client) else { return false };
            let index = (0..CLIENTS).find(|n| self.id(*n) == holder).unwrap();
            if self.now - self.renewed[index] <= self.state.limits().lease {
                return true;
            }
            self.opens.retain(|open| open.client != holder);
        }
    }

    /// A stateid that was seen, and what a correct server finds for it.
    fn find(&self, client: usize, n: usize, age: u32) -> Option<(Stateid, Result<usize, Status>)> {
        let id = *self.seen.get(self.seen.len().checked_sub(1)?.checked_sub(n)?)?;
        let found = self.opens.iter().position(|open| open.id.other == id.other);
        let current = found.map_or(id.seqid, |found| self.opens[found].id.seqid);
        let id = Stateid { seqid: current.wrapping_sub(age), ..id };
        let result = match found.filter(|found| self.opens[*found].client == self.id(client)) {
            None => Err(Status::BadStateid),
            Some(found) if id.seqid == 0 || age == 0 => Ok(found),
            Some(_) => Err(if age == 1 { Status::OldStateid } else { Status::BadStateid }),
        };
        Some((id, result))
    }

    /// The same for an operation that needs an open that is not revoked.
    fn usable(&self, client: usize, n: usize, age: u32) -> Option<(Stateid, Result<usize, Status>)> {
        let (id, found) = self.find(client, n, age)?;
        let usable =
            |found: usize| if self.opens[found].revoked { Err(Status::AdminRevoked) } else { Ok(found) };
        Some((id, found.and_then(usable)))
    }

    fn open(&mut self, client: usize, owner: u8, file: usize, access: u32, deny: u32) {
        let id = self.id(client);
        let own =
            |open: &&mut Open| !open.revoked && (open.client, open.owner, open.file) == (id, owner, file);
        let other = self.opens.iter_mut().find(own).map(|open| open.id.other);
        let excluded = self.excluded(file, other, access, deny);
        let request = OpenRequest {
            owner: &[owner],
            file: &[file as u8],
            access,
            deny,
            reclaim: false,
            reserved: None,
        };
        let result = self.state.open(self.sessions[client].client(), &request, self.now);
        if excluded {
            assert_eq!(result, Err(Status::ShareDenied));
            return;
        }
        let result = result.unwrap();
        match self.opens.iter_mut().find(own) {
            Some(open) => {
                open.id.seqid += 1;
                open.shares.push((access, deny));
                assert_eq!(result, open.id);
            }
            None => {
                assert!(result.seqid == 1 && self.seen.iter().all(|seen| seen.other != result.other));
                let shares = vec![(access, deny)];
                self.opens.push(Open { client: id, owner, file, shares, id: result, revoked: false });
            }
        }
        self.seen.push(result);
    }

    fn downgrade(&mut self, client: usize, n: usize, age: u32, access: u32, deny: u32) {
        let Some((id, found)) = self.usable(client, n, age) else { return };
        let file = found.map_or(0, |found| self.opens[found].file);
        let expected = found.and_then(|found| {
            let open = &mut self.opens[found];
            let mut rest = open.shares.clone();
            rest.retain(|(a, d)| a & !access == 0 && d & !deny == 0);
            if Open::union(&rest) != (access, deny) {
                return Err(Status::Inval);
            }
            open.id.seqid += 1;
            open.shares = rest;
            Ok(open.id)
        });
        let client = self.sessions[client].client();
        assert_eq!(self.state.open_downgrade(client, &id, &[file as u8], access, deny), expected);
    }

    fn close(&mut self, client: usize, n: usize, age: u32) {
        let Some((id, found)) = self.usable(client, n, age) else { return };
        let file = found.map_or(0, |found| self.opens[found].file);
        let result = self.state.close(self.sessions[client].client(), &id, &[file as u8]);
        assert_eq!(result.map(|_| ()), found.map(|_| ()));
        found.into_iter().for_each(|found| drop(self.opens.swap_remove(found)));
    }

    fn check(&mut self, client: usize, n: usize, age: u32, file: usize, write: bool) {
        let Some((id, found)) = self.usable(client, n, age) else { return };
        let expected =
            match found.map(|found| (self.opens[found].file, Open::union(&self.opens[found].shares).0)) {
                Err(status) => Err(status),
                Ok((of, _)) if of != file => Err(Status::BadStateid),
                Ok((_, access)) if access & if write { 2 } else { 1 } != 0 => Ok(()),
                Ok(_) if write => Err(Status::OpenMode),
                Ok(_) if self.excluded(file, None, 1, 0) => Err(Status::Locked),
                Ok(_) => Ok(()),
            };
        let client = self.sessions[client].client();
        assert_eq!(check_access(&self.state, client, &id, &[file as u8], write, self.now), expected);
    }

    fn anonymous(&mut self, client: usize, file: usize, ones: bool, write: bool) {
        let id = if ones { Stateid::READ_BYPASS } else { Stateid::ANONYMOUS };
        let checked = !ones || write;
        let excluded = checked && self.excluded(file, None, if write { 2 } else { 1 }, 0);
        let expected = if excluded { Err(Status::Locked) } else { Ok(()) };
        let client = self.sessions[client].client();
        assert_eq!(check_access(&self.state, client, &id, &[file as u8], write, self.now), expected);
    }

    fn test(&self, client: usize, n: usize, age: u32) {
        let Some((id, found)) = self.usable(client, n, age) else { return };
        let expected = found.map_or_else(|status| status, |_| Status::Ok);
        assert_eq!(self.state.test_stateid(self.sessions[client].client(), &id), expected);
    }

    fn free(&mut self, client: usize, n: usize, age: u32) {
        let Some((id, found)) = self.find(client, n, age) else { return };
        let free = |found: usize| if self.opens[found].revoked { Ok(found) } else { Err(Status::LocksHeld) };
        let expected = found.and_then(free);
        let result = self.state.free_stateid(self.sessions[client].client(), &id);
        assert_eq!(result, expected.map(|_| ()));
        expected.into_iter().for_each(|found| drop(self.opens.swap_remove(found)));
    }

    fn run(&mut self, step: Step) {
        match step {
            Step::Open(c, ..)
            | Step::Downgrade(c, ..)
            | Step::Close(c, ..)
            | Step::Check(c, ..)
            | Step::Anonymous(c, ..)
            | Step::Test(c, ..)
            | Step::Free(c, ..)
            | Step::Renew(c) => self.renew(c),
            _ => {}
        }
        match step {
            Step::Open(c, owner, file, access, deny) => self.open(c, owner, file, access, deny),
            Step::Downgrade(c, n, age, access, deny) => self.downgrade(c, n, age, access, deny),
            Step::Close(c, n, age) => self.close(c, n, age),
            Step::Check(c, n, age, file, write) => self.check(c, n, age, file, write),
            Step::Anonymous(c, file, ones, write) => self.anonymous(c, file, ones, write),
            Step::Test(c, n, age) => self.test(c, n, age),
            Step::Free(c, n, age) => self.free(c, n, age),
            Step::Revoke(file) => {
                self.state.revoke(Selection::File(&[file as u8])).unwrap();
                self.opens.iter_mut().filter(|open| open.file == file).for_each(|open| open.revoked = true);
            }
            Step::Restart(client) => self.restart(client),
            Step::Renew(_) => {}
            Step::Wait(seconds) => self.now += S(seconds),
        }
        for file in 0..FILES {
            let open = self.opens.iter().any(|open| open.file == file && !open.revoked);
            assert_eq!(self.state.is_open(&[file as u8]), open, "file {file}");
        }
    }

    /// Ends all clients: nothing remains.
    fn end(self) {
        self.state.expire(self.now + self.state.limits().courtesy + S(1));
        assert!((0..FILES).all(|file| !self.state.is_open(&[file as u8])));
        assert_eq!(self.state.heap.left(), self.state.limits().heap);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn opens_are_those_of_the_list(steps in steps()) {
        let mut model = Model::new();
        for step in steps {
            model.run(step);
        }
        model.end();
    }
}
