// Included by the documentation tests: a server in this process with a disk of 16 MiB in memory, and its URL.

/// Runs an asynchronous example with the URL of the disk.
fn run<F: Future<Output = Result<(), Box<dyn std::error::Error>>>>(example: impl FnOnce(String) -> F) {
    let target = millrace_server::target_name("memory").unwrap();
    let luns = vec!["/export/disk,size=16MiB,block=4096".parse().unwrap()];
    let config = millrace_server::Config {
        exports: vec!["/export=memory:64MiB".parse().unwrap()],
        targets: vec![millrace_server::TargetSettings::new(target.clone(), luns)],
        listen_iscsi: Some("127.0.0.1:0".parse().unwrap()),
        shards: Some(1),
        ..millrace_server::Config::default()
    };
    let server = millrace_server::Server::start(config).unwrap();
    let url = format!("iscsi://{}/{target}/0", server.iscsi_addr().unwrap());
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    tokio.block_on(example(url)).unwrap();
    drop(tokio);
    server.stop_blocking(std::time::Duration::from_secs(1));
}
