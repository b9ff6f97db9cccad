//! Copies in user space. This test has its own process, because the counter of copied bytes is process-wide.

use std::{net::SocketAddr, time::Duration};

use millrace_client::{
    Options, Proto, ProviderChoice, Url, Version, handles::blocking::Client, ops::StableHow,
};
use millrace_read_read::Design;
use millrace_server::{Config, Server};

const LEN: usize = 1 << 20;

#[test]
fn neither_end_copies_the_data_of_large_reads_and_writes() -> Result<(), Box<dyn std::error::Error>> {
    let config = Config {
        exports: vec!["/data=memory:64MiB".parse()?],
        listen_rdma: vec![SocketAddr::from(([127, 0, 0, 1], 0))],
        // With an adapter the server copies results whose pages need more segments than a reply may have.
        provider: ProviderChoice::Iwarp,
        shards: Some(1),
        rdma_protocol: Design::ReadRead.protocol(),
        ..Config::default()
    };
    let server = Server::start(config)?;
    let port = server.rdma_addr().map(|addr| addr.port());
    let url = Url { port, proto: Some(Proto::Rdma), ..Url::new("127.0.0.1", "/data") };
    let options = Options::default().vers(Some(Version::V3)).rdma_protocol(Design::ReadRead.protocol());
    let client = Client::connect(&url, options)?;
    let file = client.create_file("f", 0o600)?.handle();
    let mut data = client.arena().alloc(LEN)?;
    data.iter_mut().enumerate().for_each(|(i, b)| *b = (i >> 3) as u8);
    let data = data.freeze();

    let before = millrace_buffer::copied::total();
    for n in 0..8 {
        let written = client.write_from(file, n * LEN as u64, data.clone().into(), StableHow::FileSync)?;
        assert_eq!(written.count, LEN);
    }
    let mut buffer = client.arena().alloc(LEN)?;
    for n in 0..8 {
        let address = buffer.address();
        let read = client.read_into(file, n * LEN as u64, buffer)?;
        assert!(read.count == LEN && read.buffer[..] == data[..] && read.buffer.address() == address);
        buffer = read.buffer;
    }
    assert_eq!(millrace_buffer::copied::total() - before, 0);
    drop((client, buffer));
    server.stop_blocking(Duration::from_secs(1));
    Ok(())
}
