//! A short run of every target. `MILLRACE_FUZZ_EXECUTIONS` is the number of executions of each target,
//! `MILLRACE_FUZZ_SEED` determines the mutations.

#![allow(clippy::panic, clippy::unwrap_used)]

use millrace_fuzz::{drive, target};

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable)
        .ok()
        .map(|v| v.parse().unwrap_or_else(|_| panic!("{variable}={v} is not a number")))
}

fn short(name: &str) {
    let target = target(name).unwrap();
    let executions = number("MILLRACE_FUZZ_EXECUTIONS").unwrap_or(target.short);
    let seed = number("MILLRACE_FUZZ_SEED").unwrap_or(1);
    println!("{name}: {executions} executions, MILLRACE_FUZZ_SEED={seed}");
    drive::run(target, executions, seed);
}

macro_rules! short_runs {
    ($($test:ident),* $(,)?) => {
        $(#[test]
        fn $test() {
            short(stringify!($test));
        })*

        #[test]
        fn every_target_has_a_short_run() {
            let names: Vec<&str> = millrace_fuzz::TARGETS.iter().map(|t| t.name).collect();
            assert_eq!(names, [$(stringify!($test)),*]);
        }
    };
}

short_runs! {
    record_marking,
    rpc_call,
    rpc_reply,
    universal_address,
    rpc_rdma_header,
    private_data,
    nfs3_args,
    nfs3_results,
    mount3,
    nfs4_compound,
    mpa_request,
    mpa_reply,
    fpdu_stream,
    file_handles,
    url,
    mount_options,
    configuration,
    krb5_token,
    iscsi_pdu,
    iscsi_text,
    iscsi_login,
    iscsi_session,
    iser_header,
    scsi_cdb,
    tcp_server,
    rdma_server_stream,
    rdma_server_messages,
    nfs4_server,
    tcp_client,
    rdma_client,
    tls_server,
    gss_server,
    iscsi_connection,
    nbd_connection,
}
