//! A correct client, which checks the results of its calls.

use std::time::Duration;

use millrace_client::Proto;
use millrace_runtime::{RuntimeExt, RuntimeRef};

use super::scene::Net;

const HOST: u8 = 2;

/// Writes, reads and removes files of `/honest`.
pub(super) async fn client(net: &Net, rt: &RuntimeRef, proto: Proto) {
    let client = net.mount(rt, HOST, proto, "/honest").await.expect("a correct client mounts");
    for round in 0..3_u8 {
        let data: Vec<u8> = (0..3000_u32).map(|n| (n * 7) as u8 ^ round).collect();
        let file = client.create_file("file", 0o644).await.expect("it creates a file");
        file.write(0, &data).await.expect("it writes");
        file.commit().await.expect("it commits");
        let mut read = vec![0; data.len() + 1];
        assert_eq!(file.read(0, &mut read).await.expect("it reads"), data.len());
        assert_eq!(read[..data.len()], data, "it reads what it wrote");
        file.close().await.expect("it closes the file");
        client.remove(client.root(), "file").await.expect("it removes the file");
        rt.sleep(Duration::from_millis(300)).await;
    }
    client.close();
}
