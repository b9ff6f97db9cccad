//! Lookup of the export and of the MOUNT program.

use std::{sync::atomic::Ordering, time::Duration};

use millrace_nfs::{mount, v3::Status};
use millrace_oncrpc::RpcError;
use millrace_runtime::tokio_rt::TokioRuntime;

use super::script::{Script, fail, quick, run};
use crate::{Error, Options, handles::Client};

#[test]
fn mount_uses_another_connection_if_the_nfs_connection_does_not_offer_it() {
    run(async {
        let script = Script::new(|_, _| fail(Status::Io));
        script.mount_elsewhere.store(true, Ordering::Relaxed);
        let c = script.mount("/e/sub", quick()).await.unwrap();
        assert_eq!((c.export(), c.path_in_export()), ("/e", &b"sub"[..]));
        assert_eq!(script.mount_connections.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn the_prefixes_are_tried_if_the_server_does_not_list_its_exports() {
    run(async {
        for exports in [None, Some(vec![])] {
            let script = Script::new(|_, _| fail(Status::Io));
            *script.exports.lock() = exports;
            *script.mountable.lock() = vec!["/", "/a/b"];
            let mounted = async |path: &str| {
                let c = script.mount(path, quick()).await.unwrap();
                (c.export().to_owned(), c.path_in_export().to_owned())
            };
            assert_eq!(mounted("/a/b/c/d").await, ("/a/b".into(), "c/d".into()));
            assert_eq!(mounted("/a/b").await, ("/a/b".into(), Vec::new()));
            assert_eq!(mounted("/a").await, ("/".into(), "a".into()));
        }
    });
}

#[test]
fn the_error_for_an_unknown_export_lists_the_exports() {
    run(async {
        let script = Script::new(|_, _| fail(Status::Io));
        let e = script.mount("/x/y", quick()).await.unwrap_err();
        assert!(matches!(e, Error::UnknownExport { .. }) && e.to_string().ends_with("it exports: /e"), "{e}");
        *script.mountable.lock() = vec![];
        let e = script.mount("/e/y", quick()).await.unwrap_err();
        assert!(matches!(e, Error::Mount { status: mount::Status::NoEnt, .. }), "{e}");
    });
}

#[test]
fn a_port_without_an_nfs_server_is_an_error_that_says_so() {
    run(async {
        // The kernel accepts connections, and nothing answers.
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let connect = async |vers: &str| {
            let url = format!("nfs://{}/e?proto=tcp{vers}", silent.local_addr().unwrap()).parse().unwrap();
            let moment = Duration::from_millis(50);
            let options = Options::default().connect_timeout(moment).timeout(moment * 2);
            Client::connect(TokioRuntime::current(), &url, options).await.unwrap_err()
        };
        let e = connect("").await;
        assert!(matches!(e, Error::NoAnswer { .. }) && e.is_unreachable(), "{e}");
        assert_eq!(e.kind(), std::io::ErrorKind::TimedOut);
        assert!(e.to_string().contains("check that the port is that of NFS"), "{e}");
        // MNT is not tried after EXPORT, because both would wait for the whole time.
        let e = connect("&vers=3").await;
        let expected = matches!(e, Error::Rpc { procedure: "EXPORT", error: RpcError::TimedOut { .. }, .. });
        assert!(expected && e.is_unreachable(), "{e}");
    });
}
