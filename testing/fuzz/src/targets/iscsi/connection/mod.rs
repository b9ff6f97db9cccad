//! Whole connections of a target: a peer that executes the input's operations, and a correct initiator beside it, in
//! virtual time.

mod attacker;
mod initiator;
mod scene;
mod seeds;
mod slow;

use std::time::Duration;

use self::{attacker::Attacker, scene::Scene};
use crate::bytes::Input;
pub(in crate::targets) use seeds::seeds;

/// Executes the target with `input`: the capacity and the segments of the stream, the delay of the disks, and
/// operations. The attack and the correct initiator end; the initiator reads what it has written; all connections end
/// and return their memory; the attacked target serves another initiator.
pub(in crate::targets) fn run(input: &[u8]) {
    let mut input = Input::new(input);
    let capacity = 512 << (input.u8() % 8);
    let segment = usize::from(input.u8()) * 16 + 1;
    let delay = Duration::from_millis(u64::from(input.u8() % 4) * 300);
    let script = input.rest();
    Scene::run(delay, async |scene| {
        let stream = || scene.connect([10, 0, 1, 1], capacity, segment);
        let attack = Attacker::new(&scene.rt, &stream).execute(script);
        futures::future::join(attack, initiator::work(scene)).await.0
    });
}
