//! Lookup of the export and of the MOUNT program.

use std::sync::atomic::Ordering;

use millrace_nfs::{mount, v3::Status};

use super::script::{Script, fail, quick, run};
use crate::Error;

#[test]
fn mount_uses_another_connection_if_the_nfs_connection_does_not_offer_it() {
    run(async {
        let script = Script::new(|_, _| fail(Status::Io));
        script.mount_elsewhere.store(true, Ordering::Relaxed);
        let c = script.mount("/e/sub", quick()).await.unwrap();
        assert_eq!((c.export(), c.path_in_export()), ("/e", "sub"));
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
            assert_eq!(mounted("/a/b").await, ("/a/b".into(), String::new()));
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
