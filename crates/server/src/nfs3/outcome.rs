//! The outcomes of procedures.

use std::sync::Arc;

use millrace_oncrpc::{Fault, Outcome};
use millrace_xdr::Encoder;

use super::arguments::Object;
use crate::export::Export;

/// The result of a procedure: the encoder with appended results, or the fault.
pub(super) type Executed = Result<Encoder, Fault>;

/// The outcome of a call.
pub(super) struct ProcedureOutcome {
    pub(super) outcome: Outcome,
    /// The export to which the call is accounted.
    pub(super) export: Option<Arc<Export>>,
    /// Whether the call is counted. Retransmissions are not counted, including calls that the client is to
    /// retransmit later.
    pub(super) counted: bool,
}

impl ProcedureOutcome {
    /// The outcome of a procedure on `object`.
    pub(super) fn new(outcome: Outcome, object: impl Object) -> Self {
        Self { outcome, export: Some(object.into_export()), counted: true }
    }

    /// The outcome of a call that is not executed.
    pub(super) fn uncounted(outcome: Outcome) -> Self {
        Self { outcome, export: None, counted: false }
    }
}

impl From<Fault> for ProcedureOutcome {
    fn from(fault: Fault) -> Self {
        Self { outcome: Err(fault), export: None, counted: true }
    }
}
