//! Listing directories.

use std::collections::BTreeSet;

use crate::{FsError::*, ReadDirLimits};

use super::fixture::{Fixture, fails, mode, root};

const ALL: ReadDirLimits = ReadDirLimits { max_entries: 10_000, max_name_bytes: 1 << 20, plus: false };

pub(crate) fn listing_contains_each_entry_once(f: &Fixture) {
    let sub = f.subdir("sub");
    let page = f.op(f.fs.readdir(&root(), &sub, 0, [0; 8], ALL)).unwrap();
    assert!(page.eof);
    assert_eq!(page.attr, f.attr(&sub));
    let dots: Vec<_> = page.entries.iter().map(|e| (e.name.as_slice(), e.fileid)).collect();
    assert_eq!(dots, [(&b"."[..], f.attr(&sub).fileid), (&b".."[..], f.attr(&f.dir).fileid)]);
    let mut expected = BTreeSet::new();
    for at in 0..50 {
        let name = format!("entry {at}");
        f.create(&root(), &sub, name.as_bytes(), mode(0o644)).unwrap();
        expected.insert(name.into_bytes());
    }
    let entries = f.list(&sub, 10_000);
    let names: BTreeSet<_> = entries.iter().map(|e| e.name.clone()).collect();
    assert_eq!((names.len(), &names), (entries.len(), &expected));
    let cookies: BTreeSet<_> = entries.iter().map(|e| e.cookie).collect();
    assert!(cookies.len() == entries.len() && !cookies.contains(&0));
    for e in &entries {
        let handle = f.lookup(&sub, std::str::from_utf8(&e.name).unwrap()).unwrap();
        assert_eq!(f.attr(&handle).fileid, e.fileid);
    }
    fails(f.op(f.fs.readdir(&root(), &f.file("file"), 0, [0; 8], ALL)), &[NotDir]);
}

pub(crate) fn small_pages_form_the_whole_listing(f: &Fixture) {
    for at in 0..20 {
        f.file(&format!("{at}"));
    }
    let whole: Vec<_> = f.list(&f.dir, 1000).into_iter().map(|e| e.name).collect();
    assert_eq!(whole.len(), 20);
    for per_page in [1, 2, 3, 7, 22] {
        let joined: Vec<_> = f.list(&f.dir, per_page).into_iter().map(|e| e.name).collect();
        assert_eq!(joined, whole, "{per_page} a page");
    }
    // The limit on name bytes applies, but at least one entry is returned.
    let narrow = ReadDirLimits { max_entries: 100, max_name_bytes: 0, plus: false };
    let page = f.op(f.fs.readdir(&root(), &f.dir, 0, [0; 8], narrow)).unwrap();
    assert_eq!((page.entries.len(), page.eof), (1, false));
    let some = ReadDirLimits { max_name_bytes: 10, ..narrow };
    let page = f.op(f.fs.readdir(&root(), &f.dir, 0, [0; 8], some)).unwrap();
    assert!(page.entries.iter().map(|e| e.name.len()).sum::<usize>() <= 10 && !page.eof);
    // Continuing after the last cookie returns an empty last page.
    let last = f.list(&f.dir, 1000).pop().unwrap().cookie;
    let end = f.op(f.fs.readdir(&root(), &f.dir, last, page.verifier, ALL)).unwrap();
    assert_eq!((end.entries.len(), end.eof), (0, true));
}

pub(crate) fn plus_returns_handles_and_attributes(f: &Fixture) {
    f.subdir("d");
    f.file("a");
    let plus = ReadDirLimits { plus: true, ..ALL };
    let page = f.op(f.fs.readdir(&root(), &f.dir, 0, [0; 8], plus)).unwrap();
    assert_eq!(page.entries.len(), 4);
    for e in &page.entries {
        let name = std::str::from_utf8(&e.name).unwrap();
        let Some((handle, attr)) = e.plus else { panic!("{name} came without attributes") };
        assert_eq!(handle, f.lookup(&f.dir, name).unwrap(), "{name}");
        assert_eq!((attr, e.fileid), (f.attr(&handle), attr.fileid));
    }
}

pub(crate) fn bad_cookies_are_rejected(f: &Fixture) {
    f.file("a");
    let first = f.op(f.fs.readdir(&root(), &f.dir, 0, [0; 8], ALL)).unwrap();
    let cookie = first.entries[0].cookie;
    let mut wrong = first.verifier;
    wrong[3] ^= 1;
    fails(f.op(f.fs.readdir(&root(), &f.dir, cookie, wrong, ALL)), &[BadCookie]);
    f.op(f.fs.readdir(&root(), &f.dir, cookie, first.verifier, ALL)).unwrap();
}

pub(crate) fn unchanged_entries_are_listed_once_during_changes(f: &Fixture) {
    let stays: BTreeSet<_> = (0..60).map(|i| format!("stays{i}")).collect();
    for (at, name) in stays.iter().enumerate() {
        f.file(name);
        f.file(&format!("goes{at}"));
    }
    let limits = ReadDirLimits { max_entries: 5, ..ALL };
    let (mut cookie, mut verifier, mut round) = (0, [0; 8], 0);
    let mut seen = Vec::new();
    loop {
        let page = f.op(f.fs.readdir(&root(), &f.dir, cookie, verifier, limits)).unwrap();
        (cookie, verifier) = (page.entries.last().map_or(cookie, |e| e.cookie), page.verifier);
        seen.extend(page.entries.into_iter().map(|e| String::from_utf8(e.name).unwrap()));
        if page.eof {
            break;
        }
        // Changes between two pages; the entry of the current cookie may be removed too.
        if round < 60 {
            f.remove(&f.dir, &format!("goes{round}")).unwrap();
            f.file(&format!("new{round}"));
            let (from, to) = (format!("new{}", round / 2), format!("renamed{round}"));
            let _ = f.rename(&f.dir, &from, &f.dir, &to); // The name may have been removed before.
        }
        round += 1;
        assert!(round < 500, "the scan does not terminate");
    }
    let mut steady: Vec<_> = seen.iter().filter(|n| n.starts_with("stays")).cloned().collect();
    steady.sort();
    assert_eq!(steady, stays.into_iter().collect::<Vec<_>>());
}
