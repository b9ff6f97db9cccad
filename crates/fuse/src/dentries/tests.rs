//! Tests of the records of cached names.

use super::*;

const NOW: Instant = Instant::from_nanos(0);
const LIFE: Duration = Duration::from_secs(3600);

fn path(dentries: &Dentries, number: u64) -> Option<String> {
    dentries.path(number).map(|p| p.to_str().unwrap().to_owned())
}

fn sorted(names: impl IntoIterator<Item = Arc<[u8]>>) -> Vec<String> {
    let mut names: Vec<_> = names.into_iter().map(|n| String::from_utf8_lossy(&n).into_owned()).collect();
    names.sort();
    names
}

fn cached(dentries: &Dentries, number: u64) -> Vec<String> {
    sorted(dentries.cached_names(number).into_iter().map(|(_, name, _)| name))
}

/// Expires the names in a directory and returns them.
fn expire(dentries: &mut Dentries, dir: u64) -> Vec<String> {
    let (mut expired, last) = (Vec::new(), dentries.last_stamp());
    loop {
        let names = dentries.begin_expiry(dir, last);
        if names.is_empty() {
            return sorted(expired);
        }
        names.iter().for_each(|name| dentries.finish_expiry(name));
        expired.extend(names.into_iter().map(|(_, name, _)| name));
    }
}

/// Runs `of`, and returns the number of names that it visited.
fn visited<T>(dentries: &mut Dentries, of: impl FnOnce(&mut Dentries) -> T) -> (usize, T) {
    let before = dentries.visited;
    let result = of(dentries);
    (dentries.visited - before, result)
}

#[test]
fn paths_follow_renames() {
    let mut d = Dentries::default();
    d.insert(2, (ROOT, b"docs"));
    d.insert(3, (2, b"draft"));
    d.insert(4, (2, b"final"));
    assert_eq!(path(&d, 3).as_deref(), Some("docs/draft"));
    // A replaced file has no name, even after its directory is renamed.
    d.rename((2, b"draft"), (2, b"final"));
    d.rename((ROOT, b"docs"), (ROOT, b"papers"));
    assert_eq!(path(&d, 3).as_deref(), Some("papers/final"));
    assert_eq!(path(&d, 4), None);
    // Another file was found under the name.
    d.insert(5, (2, b"final"));
    assert_eq!((path(&d, 3), path(&d, 5).as_deref()), (None, Some("papers/final")));
    // A directory that was never looked up replaces `papers`.
    d.rename((ROOT, b"never seen"), (ROOT, b"papers"));
    assert_eq!(path(&d, 2), None);
    d.forget(2);
    assert_eq!(path(&d, 5), None);
    d.forget(5);
    assert!(d.by_inode.is_empty() && d.directories.is_empty());
}

#[test]
fn directory_cycle_has_no_path() {
    let mut d = Dentries::default();
    d.insert(2, (3, b"a"));
    d.insert(3, (2, b"b"));
    assert_eq!(d.path(3), None);
}

#[test]
fn cached_names_lists_all_hard_links() {
    let mut d = Dentries::default();
    for name in [b"x", b"y", b"z", b"x"] {
        d.insert(2, (ROOT, name));
    }
    assert_eq!(cached(&d, 2), ["x", "y", "z"]);
    assert_eq!(path(&d, 2).as_deref(), Some("x"), "most recently seen");
    d.remove((ROOT, b"x"));
    d.rename((ROOT, b"y"), (ROOT, b"w"));
    assert_eq!(cached(&d, 2), ["w", "z"]);
    d.insert(3, (ROOT, b"w"));
    assert_eq!((cached(&d, 2), cached(&d, 3)), (vec!["z".into()], vec!["w".into()]));
    d.forget(2);
    d.forget(3);
    assert!(d.by_inode.is_empty() && d.directories.is_empty());
}

#[test]
fn names_expire_once_and_stay_recorded() {
    let mut d = Dentries::default();
    d.insert(2, (ROOT, b"dir"));
    d.insert(3, (2, b"file"));
    d.insert(4, (2, b"other"));
    assert!(d.insert_negative((2, b"nothing"), NOW, LIFE));
    assert_eq!(expire(&mut d, 2), ["file", "nothing", "other"]);
    assert!(expire(&mut d, 2).is_empty() && d.cached_names(3).is_empty());
    assert_eq!(path(&d, 3).as_deref(), Some("dir/file"));
    d.insert(3, (2, b"file"));
    let names = d.begin_expiry(2, d.last_stamp());
    assert_eq!((names.len(), d.begin_expiry(2, d.last_stamp()).len()), (1, 0), "a notification is pending");
    assert_eq!(cached(&d, 3), ["file"], "not expired yet");
    d.insert(3, (2, b"file"));
    d.finish_expiry(&names[0]);
    assert_eq!(cached(&d, 3), ["file"], "looked up again since");
    assert_eq!(expire(&mut d, 2), ["file"]);
    assert_eq!(
        (cached(&d, 3), cached(&d, 2)),
        (vec![], vec!["dir".into()]),
        "names in other directories stay"
    );
    d.insert(3, (2, b"file"));
    assert!(d.insert_negative((2, b"nothing"), NOW, LIFE) && d.begin_name_expiry((2, b"nothing")).is_some());
    assert!(d.begin_name_expiry((2, b"file")).is_some() && d.begin_name_expiry((2, b"file")).is_none());
    assert!(d.negative.is_empty() && d.directories[&2].cached.is_empty());
}

#[test]
fn expiry_visits_a_bounded_number_of_names() {
    let mut d = Dentries::default();
    let all = 20 * EXPIRY_BATCH as u64 + 1;
    for n in 0..all {
        d.insert(10 + n, (2, &n.to_le_bytes()));
    }
    assert!(d.insert_negative((2, b"nothing"), NOW, LIFE));
    let last = d.last_stamp();
    let (mut batches, mut expired) = (0, 0);
    loop {
        let (visits, names) = visited(&mut d, |d| d.begin_expiry(2, last));
        assert!(visits <= EXPIRY_BATCH, "{visits}");
        if names.is_empty() {
            break;
        }
        names.iter().for_each(|name| d.finish_expiry(name));
        (batches, expired) = (batches + 1, expired + names.len() as u64);
        // Names that are cached meanwhile stay cached, so the expiry ends.
        d.insert(10, (2, &0_u64.to_le_bytes()));
        assert_eq!(cached(&d, 10).len(), 1);
    }
    assert_eq!((batches, expired), (21, all + 1));
    // An expired name is not visited again.
    let (visits, names) = visited(&mut d, |d| d.begin_expiry(2, d.last_stamp()));
    assert_eq!((visits, names.len()), (1, 1));
}

#[test]
fn names_in_a_directory_that_was_forgotten_and_found_again_belong_to_the_new_files() {
    let mut d = Dentries::default();
    d.insert(2, (ROOT, b"dir"));
    d.insert(3, (2, b"file")); // Stays in use.
    assert!(d.insert_negative((2, b"nothing"), NOW, LIFE));
    assert!(d.forget(2).is_some());
    d.insert(2, (ROOT, b"dir"));
    d.insert(4, (2, b"file"));
    d.insert(5, (2, b"nothing"));
    assert_eq!((cached(&d, 3), cached(&d, 4)), (vec![], vec!["file".into()]));
    assert!(d.insert_negative((2, b"other"), NOW + LIFE, LIFE), "removes the first negative entry");
    assert_eq!((d.negative.len(), cached(&d, 5)), (1, vec!["nothing".into()]));
    d.forget(3);
    assert_eq!(cached(&d, 4), ["file"]);
    d.insert(4, (2, b"file"));
    d.insert(4, (2, b"file"));
    d.forget(2);
    d.insert(4, (2, b"file"));
    assert_eq!(cached(&d, 4), ["file"], "recorded once");
}

#[test]
fn negative_entries_are_bounded() {
    let mut d = Dentries::default();
    for n in 0..MAX_NEGATIVE as u32 {
        assert!(d.insert_negative((ROOT, &n.to_le_bytes()), NOW, LIFE));
    }
    assert!(!d.insert_negative((3, b"too many"), NOW, LIFE));
    assert!(d.insert_negative((ROOT, &1_u32.to_le_bytes()), NOW, LIFE), "an existing entry");
    assert_eq!(d.visited, 0);
    // Expired entries are removed faster than new ones are inserted.
    for n in 0..MAX_NEGATIVE as u32 {
        let (visits, inserted) =
            visited(&mut d, |d| d.insert_negative((2, &n.to_le_bytes()), NOW + LIFE, LIFE));
        assert!(inserted && visits <= NEGATIVES_REMOVED, "{visits}");
    }
    assert_eq!((d.negative.len(), d.directories.len()), (MAX_NEGATIVE, 1));
    // Two names are created, and the directory is forgotten.
    d.insert(9, (2, &0_u32.to_le_bytes()));
    d.insert(9, (2, &1_u32.to_le_bytes()));
    assert_eq!(d.negative.len(), MAX_NEGATIVE - 2);
    assert!(d.forget(2).is_some() && d.directories.is_empty());
    // The negative entries of the forgotten directory count until their timeout.
    assert!(d.insert_negative((3, b"a"), NOW + LIFE, LIFE) && d.insert_negative((3, b"b"), NOW + LIFE, LIFE));
    assert!(!d.insert_negative((3, b"c"), NOW + LIFE, LIFE));
    for n in 0..MAX_NEGATIVE as u32 {
        assert!(d.insert_negative((4, &n.to_le_bytes()), NOW + LIFE + LIFE, LIFE));
    }
}
