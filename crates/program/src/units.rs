//! Parsing and formatting of sizes and rates.

use std::time::Duration;

pub use millrace_buffer::{ByteSize, grouped};

/// Megabytes (10^6) per second.
pub fn mb_per_s(bytes: u64, took: Duration) -> f64 {
    bytes as f64 / 1e6 / took.as_secs_f64().max(1e-9)
}

/// Processor seconds per gigabyte (10^9 bytes).
pub fn cpu_s_per_gb(cpu: Duration, bytes: u64) -> f64 {
    cpu.as_secs_f64() / (bytes as f64 / 1e9).max(1e-12)
}

/// Processor microseconds per operation.
pub fn cpu_us_per_op(cpu: Duration, operations: u64) -> f64 {
    cpu.as_secs_f64() * 1e6 / operations.max(1) as f64
}

/// Formats `value` with three significant digits below 1000, and without decimals above.
pub fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}
