//! Tests of all strategies on a model of a domain that records the memory that the peer can access.

use std::collections::HashMap;

use crate::{Domain, Exposure, ExposureId, LocalKey, LocalUse, RegistrationKind, SteeringTag};
use millrace_buffer::{ArenaConfig, Buffer, Views};
use millrace_runtime::sync::Mutex;
use millrace_runtime::tokio_rt::TokioRuntime;
use proptest::{prelude::*, strategy::Strategy as Generate};
use smallvec::smallvec;

use super::{Strategy, local::LocalMode, *};

const WINDOWS: usize = 3;
const LARGEST: usize = 20_000;
const BATCH: usize = 2;

#[derive(Default)]
struct Exposed {
    next: u64,
    live: HashMap<u64, (Memory, RegistrationKind, bool)>,
    /// Address ranges of released windows.
    released: Vec<(usize, usize)>,
}

/// A domain with all kinds of registration, which owns exposed memory and records released windows.
#[derive(Default)]
struct Model(Mutex<Exposed>);

fn range(m: &Memory) -> (usize, usize) {
    match m {
        Memory::Owned(b) => (b.address(), b.len()),
        Memory::Shared(v) => v.iter().next().map_or((0, 0), |v| (v.address(), v.len())),
    }
}

fn overlap(a: (usize, usize), b: (usize, usize)) -> bool {
    a.0 < b.0 + b.1 && b.0 < a.0 + a.1
}

impl Model {
    /// Whether the peer can write to any byte of `memory`.
    fn writes_to(&self, memory: (usize, usize)) -> bool {
        let r = self.0.lock();
        let live = r.live.values().filter(|(_, _, written)| *written).map(|(m, ..)| range(m));
        live.chain(r.released.iter().copied()).any(|at| overlap(at, memory))
    }
}

impl Domain for Model {
    fn expose(&self, by: RegistrationKind, memory: Memory, access: Access) -> Result<Exposure, ExposeError> {
        let mut r = self.0.lock();
        let bound =
            r.live.values().filter(|(_, by, _)| *by == RegistrationKind::Window).count() + r.released.len();
        if by == RegistrationKind::Window && (bound >= WINDOWS || memory.len() > LARGEST) {
            return Err(ExposeError { memory, reason: "no window" });
        }
        r.next += 1;
        let (id, length) = (r.next, memory.len() as u32);
        r.live.insert(id, (memory, by, access == Access::RemoteWrite));
        let segment = Segment { handle: SteeringTag(id as u32), length, offset: 0 };
        Ok(Exposure { id: ExposureId(id), segments: smallvec![segment] })
    }

    fn revoke(&self, id: ExposureId) -> Option<Memory> {
        self.0.lock().live.remove(&id.0).map(|(m, ..)| m)
    }

    fn release(&self, id: ExposureId) -> Option<Memory> {
        let mut r = self.0.lock();
        let (memory, by, written) = r.live.remove(&id.0)?;
        if by == RegistrationKind::Window && written {
            r.released.push(range(&memory));
        }
        Some(memory)
    }

    fn invalidate_released(&self) -> usize {
        std::mem::take(&mut self.0.lock().released).len()
    }

    fn is_valid(&self, id: ExposureId) -> bool {
        self.0.lock().live.contains_key(&id.0)
    }

    fn exposed(&self) -> (usize, usize) {
        let r = self.0.lock();
        (r.live.len(), r.live.values().map(|(m, ..)| m.len()).sum())
    }

    fn reserve_windows(&self, count: usize, largest: usize) -> usize {
        assert_eq!((count, largest), (WINDOWS, LARGEST));
        count
    }

    fn enable_global(&self) -> bool {
        true
    }

    fn register_local(&self, _by: RegistrationKind, _pieces: &[&[u8]], _for: LocalUse) -> Option<LocalKey> {
        Some(LocalKey(0))
    }

    fn copy_out(&self, id: ExposureId, to: &mut [u8]) -> bool {
        match self.0.lock().live.get(&id.0) {
            Some((Memory::Owned(b), ..)) => to.copy_from_slice(&b[..to.len()]),
            _ => return false,
        }
        true
    }

    fn copy_in(&self, id: ExposureId, from: &Views) -> bool {
        match self.0.lock().live.get_mut(&id.0) {
            Some((Memory::Owned(b), ..)) => from.copy_to(b),
            _ => return false,
        }
        true
    }
}

/// The peer fills the memory that it may write.
fn write(model: &Model, mapped: &RegisteredMemory, fill: u8) {
    let mut r = model.0.lock();
    if let Some((Memory::Owned(b), ..)) = r.live.get_mut(&u64::from(mapped.segments()[0].handle.0)) {
        b[..mapped.segments()[0].length as usize].fill(fill);
    }
}

/// The bytes that the peer reads.
fn read(model: &Model, mapped: &RegisteredMemory) -> Vec<u8> {
    let r = model.0.lock();
    let len = mapped.segments()[0].length as usize;
    match r.live.get(&u64::from(mapped.segments()[0].handle.0)) {
        Some((Memory::Owned(b), ..)) => b[..len].to_vec(),
        Some((Memory::Shared(v), ..)) => v.to_vec(),
        None => panic!("the tag is not exposed"),
    }
}

fn settings(strategy: Strategy, invalidation: Invalidation) -> Settings {
    Settings {
        invalidation,
        windows: WINDOWS,
        window_bytes: LARGEST,
        cache_limit: 64 << 10,
        trust_peer: true,
        pressure: "/nowhere".into(),
        ..Settings::new(strategy)
    }
}

fn all_settings() -> impl Generate<Value = Settings> {
    prop_oneof![
        Just(settings(Strategy::Dynamic, Invalidation::AtOnce)),
        Just(settings(Strategy::Fast, Invalidation::AtOnce)),
        Just(settings(Strategy::Fast, Invalidation::Batched(BATCH))),
        Just(settings(Strategy::Cache, Invalidation::AtOnce)),
        Just(settings(Strategy::AllPhysical, Invalidation::AtOnce)),
    ]
}

/// One step: map memory for reading or writing (bytes), unmap it, or drop it.
#[derive(Debug, Clone)]
enum Step {
    Map(bool, usize),
    Unmap(prop::sample::Index),
    Drop(prop::sample::Index),
}

fn step() -> impl Generate<Value = Step> {
    prop_oneof![
        3 => (any::<bool>(), 1..30_000_usize).prop_map(|(w, n)| Step::Map(w, n)),
        3 => any::<prop::sample::Index>().prop_map(Step::Unmap),
        1 => any::<prop::sample::Index>().prop_map(Step::Drop),
    ]
}

fn runtime() -> (tokio::runtime::Runtime, RuntimeRef) {
    let tokio = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let rt = tokio.block_on(async { TokioRuntime::current() });
    (tokio, rt)
}

proptest! {
    /// In any order of operations, bytes are transferred, memory has one owner, the peer cannot write to
    /// unmapped memory (except through the permitted number of released windows), and the counters are
    /// consistent.
    #[test]
    fn unmapped_memory_is_inaccessible_to_the_peer(
        settings in all_settings(), steps in prop::collection::vec(step(), 1..50)
    ) {
        let (_tokio, rt) = runtime();
        let model = Arc::new(Model::default());
        let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
        let registration = Registration::new(settings.clone());
        let registrar = registration.attach(model.clone(), arena.clone(), rt).unwrap();
        let mut out: Vec<(RegisteredMemory, bool, u8, usize)> = Vec::new();
        let mut back: Vec<Buffer> = Vec::new();
        let (mut map_count, mut fill) = (0, 0_u8);
        for step in steps {
            match step {
                Step::Map(write, len) => {
                    let mut b = arena.alloc(len).unwrap();
                    fill = fill.wrapping_add(1);
                    b.fill(fill);
                    let (memory, access) = if write {
                        (Memory::Owned(b), Access::RemoteWrite)
                    } else {
                        (Memory::Shared(b.freeze().into()), Access::RemoteRead)
                    };
                    let mapped = registrar.map(memory, access).unwrap();
                    prop_assert_eq!(mapped.segments().iter().map(|s| s.length as usize).sum::<usize>(), len);
                    map_count += 1;
                    out.push((mapped, write, fill, len));
                }
                Step::Unmap(which) if !out.is_empty() => {
                    let (mapped, written, fill, len) = out.swap_remove(which.index(out.len()));
                    if !written {
                        prop_assert!(read(&model, &mapped).iter().all(|b| *b == fill));
                    }
                    write(&model, &mapped, fill ^ 0x80);
                    let placed = len / 2;
                    match registrar.unmap(mapped, placed) {
                        Some(Memory::Owned(b)) => {
                            prop_assert!(written && b.len() == len);
                            prop_assert!(b[..placed].iter().all(|b| *b == fill ^ 0x80));
                            back.push(b);
                        }
                        Some(Memory::Shared(v)) => prop_assert!(!written && v.len() == len),
                        None => prop_assert!(false, "lost"),
                    }
                }
                Step::Drop(which) if !out.is_empty() => drop(out.swap_remove(which.index(out.len()))),
                _ => {}
            }
            let late = back.iter().filter(|b| model.writes_to((b.address(), b.len()))).count();
            let window = match settings.invalidation {
                Invalidation::AtOnce => 0,
                Invalidation::Batched(n) => n - 1,
            };
            prop_assert!(late <= window, "{} buffers of new owners can be written", late);
            let stats = registration.stats();
            prop_assert_eq!(stats.registrations + stats.hits, map_count, "{:?}", stats);
            prop_assert!(stats.kept_bytes == 0 || settings.strategy == Strategy::Cache);
        }
        drop(out);
        drop(registrar);
        model.invalidate_released();
        let stats = registration.stats();
        prop_assert_eq!((stats.registrations, stats.kept_bytes), (stats.deregistrations, 0));
        prop_assert_eq!(model.exposed(), (0, 0));
        drop(back);
        prop_assert_eq!(arena.stats().in_use, 0);
    }
}

#[test]
fn memory_pressure_empties_the_cache() {
    let (_tokio, rt) = runtime();
    let path = std::env::temp_dir().join(format!("pressure-{}", std::process::id()));
    std::fs::write(&path, "some avg10=40.00 avg60=0.00 avg300=0.00 total=1\n").unwrap();
    let registration = Registration::new(Settings {
        pressure: path.clone(),
        ..settings(Strategy::Cache, Invalidation::AtOnce)
    });
    let model = Arc::new(Model::default());
    let arena = Arena::new(ArenaConfig { limit: 64 << 20, huge_pages: false });
    let registrar = registration.attach(model.clone(), arena.clone(), rt).unwrap();
    let mapped = registrar.map(Memory::Owned(arena.alloc(5000).unwrap()), Access::RemoteWrite).unwrap();
    assert_eq!(registration.stats().kept_bytes, 8192);
    drop(registrar.unmap(mapped, 0));
    let stats = registration.stats();
    assert_eq!((stats.kept_bytes, stats.reclaimed, model.exposed()), (0, 1, (0, 0)), "{stats:?}");
    std::fs::remove_file(path).unwrap();
}

#[test]
fn memory_stays_mapped_while_it_is_registered_for_an_operation() {
    const SPANS: usize = 10;
    let arena = Arena::new(ArenaConfig { limit: SPANS * millrace_buffer::SPAN_BYTES, huge_pages: false });
    let fill = || (0..SPANS).map(|_| arena.alloc(millrace_buffer::SPAN_BYTES).unwrap()).collect::<Vec<_>>();
    let all = fill();
    let by = LocalMode::PerOperation(RegistrationKind::Region);
    let mut local = Local::new(Arc::new(Model::default()), Arc::default(), by);
    let held: Vec<_> = all.chunks(1).map(|sink| local.sink(sink).unwrap()).collect();
    drop(all);
    (0..2).for_each(|_| arena.trim());
    assert_eq!(arena.stats().mapped, SPANS * millrace_buffer::SPAN_BYTES);
    drop(held);
    (0..2).for_each(|_| arena.trim());
    assert_eq!(arena.stats().mapped, 0);
}
