//! iSER.

use crate::{Claim, Experiment};

pub(super) const CLAIM: Claim = Claim {
    id: "C15",
    claim: "iSCSI over RDMA (iSER) is best nearby; over 1400 miles it is slower than IPoIB up to messages of 384 KB",
    source: "WAN 2008 section 2.4, figure 5",
    figures: "best at 0.2 mile, writes below reads; at 1400 miles below IPoIB until messages have 384 KB",
    profiles: &[],
    conditions: "",
    rules: &[],
    pictures: &[],
    experiment: Experiment::Open("the simulation does not run iSCSI and iSER yet"),
    model_gaps: "",
};
