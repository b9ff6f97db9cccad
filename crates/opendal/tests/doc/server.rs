// Included by the documentation tests: a server in this process with a memory export, and its URL.

#[allow(dead_code)]
fn serve() -> (millrace_server::Running, String) {
    let config = millrace_server::Config {
        exports: vec!["/export=memory:64MiB".parse().unwrap()],
        listen_rdma: vec!["127.0.0.1:0".parse().unwrap()],
        shards: Some(1),
        ..millrace_server::Config::default()
    };
    let server = millrace_server::Server::start(config).unwrap();
    let url = format!("nfs://{}/export", server.rdma_addr().unwrap());
    (server, url)
}

/// Runs an asynchronous example with the URL of the server.
#[allow(dead_code)]
fn run<F: Future<Output = Result<(), Box<dyn std::error::Error>>>>(example: impl FnOnce(String) -> F) {
    let (server, url) = serve();
    let tokio = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    tokio.block_on(example(url)).unwrap();
    drop(tokio);
    server.stop_blocking(std::time::Duration::from_secs(1));
}

/// Runs a blocking example with the URL of the server.
#[allow(dead_code)]
fn run_blocking(example: impl FnOnce(String) -> Result<(), Box<dyn std::error::Error>>) {
    let (server, url) = serve();
    example(url).unwrap();
    server.stop_blocking(std::time::Duration::from_secs(1));
}
