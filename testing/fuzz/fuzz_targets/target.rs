//! The targets for libFuzzer. `MILLRACE_FUZZ_TARGET` selects one. All targets share one program, because each
//! program contains the whole server, client and file systems.
#![no_main]
#![allow(clippy::expect_used)]

use std::sync::LazyLock;

static TARGET: LazyLock<&millrace_fuzz::Target> = LazyLock::new(|| {
    let name = std::env::var("MILLRACE_FUZZ_TARGET").expect("MILLRACE_FUZZ_TARGET names no target");
    millrace_fuzz::target(&name).expect("MILLRACE_FUZZ_TARGET names a target that does not exist")
});

libfuzzer_sys::fuzz_target!(|input: &[u8]| (TARGET.run)(input));
