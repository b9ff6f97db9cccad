//! Flags of mount(2) by their mount(8) option names.

use rustix::mount::MountFlags;

/// The mutually exclusive access time modes; without one the kernel's default applies (`relatime`).
const ATIME: MountFlags = MountFlags::NOATIME.union(MountFlags::RELATIME).union(MountFlags::STRICTATIME);

/// Option name, flags it clears, flags it then sets.
const NAMES: [(&str, MountFlags, MountFlags); 23] = {
    const NONE: MountFlags = MountFlags::empty();
    type F = MountFlags;
    [
        ("ro", NONE, F::RDONLY),
        ("rw", F::RDONLY, NONE),
        ("nosuid", NONE, F::NOSUID),
        ("suid", F::NOSUID, NONE),
        ("nodev", NONE, F::NODEV),
        ("dev", F::NODEV, NONE),
        ("noexec", NONE, F::NOEXEC),
        ("exec", F::NOEXEC, NONE),
        ("noatime", ATIME, F::NOATIME),
        ("atime", F::NOATIME, NONE),
        ("relatime", ATIME, F::RELATIME),
        ("norelatime", F::RELATIME, NONE),
        ("strictatime", ATIME, F::STRICTATIME),
        ("nostrictatime", F::STRICTATIME, NONE),
        ("nodiratime", NONE, F::NODIRATIME),
        ("diratime", F::NODIRATIME, NONE),
        ("lazytime", NONE, F::LAZYTIME),
        ("nolazytime", F::LAZYTIME, NONE),
        ("nosymfollow", NONE, F::NOSYMFOLLOW),
        ("symfollow", F::NOSYMFOLLOW, NONE),
        ("dirsync", NONE, F::DIRSYNC),
        ("silent", NONE, F::SILENT),
        ("loud", F::SILENT, NONE),
    ]
};

/// Applies the option `name` to `flags`. `false`: it is not a flag.
pub fn apply(flags: &mut MountFlags, name: &str) -> bool {
    let Some((_, clears, sets)) = NAMES.iter().find(|(w, ..)| *w == name) else { return false };
    *flags = flags.difference(*clears) | *sets;
    true
}

/// Names of the options that set `flags`.
pub fn names(flags: MountFlags) -> impl Iterator<Item = &'static str> {
    NAMES.iter().filter(move |(_, _, sets)| flags.intersects(*sets)).map(|(name, ..)| *name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(words: &str) -> MountFlags {
        let mut flags = MountFlags::empty();
        assert!(words.split(',').all(|w| apply(&mut flags, w)), "{words}");
        flags
    }

    #[test]
    fn last_option_wins() {
        assert_eq!(after("nosuid,suid,ro,rw,noexec"), MountFlags::NOEXEC);
        assert_eq!(after("suid,nosuid,rw,ro"), MountFlags::NOSUID | MountFlags::RDONLY);
    }

    #[test]
    fn access_time_options_are_exclusive() {
        assert_eq!(after("noatime,strictatime"), MountFlags::STRICTATIME);
        assert_eq!(after("strictatime,noatime,nodiratime"), MountFlags::NOATIME | MountFlags::NODIRATIME);
        assert_eq!(after("noatime,relatime"), MountFlags::RELATIME);
        assert_eq!(after("noatime,atime"), MountFlags::empty());
    }

    #[test]
    fn names_of_flags_set_the_same_flags() {
        let all = NAMES.iter().fold(MountFlags::empty(), |all, (.., sets)| all | *sets);
        let mut again = MountFlags::empty();
        for name in names(all - MountFlags::STRICTATIME - MountFlags::RELATIME) {
            assert!(apply(&mut again, name));
        }
        assert_eq!(again, all - MountFlags::STRICTATIME - MountFlags::RELATIME);
        assert!(!apply(&mut again, "sync") && !apply(&mut again, "nosuid=1"));
    }
}
