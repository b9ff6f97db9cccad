//! Commands that an initiator sends, and decoders of the parameter data that it receives.
//!
//! The parameter data is a target's: decoders accept any bytes, and allocate at most in proportion to them.

mod data_in;
mod request;

pub use data_in::{
    BlockLimits, BlockState, Capacity, Designator, Inquiry, LbaStatus, ModeParameters, Provisioning,
    Truncated, block_limits, capacity, designators, inquiry, lba_status, mode_parameters, provisioning,
    report_luns, serial_number,
};
pub use request::{
    get_lba_status, inquiry as inquiry_cdb, mode_sense_10, read_16, read_capacity_16,
    report_luns as report_luns_cdb, synchronize_cache_16, test_unit_ready, unmap, unmap_list, vital_page,
    write_16, write_same_16,
};
