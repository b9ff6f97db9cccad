//! Opens the FUSE device and attaches it to a directory with mount(2), or with fusermount3.

use std::{
    ffi::CString,
    fs::{File, OpenOptions},
    io::{self, IoSliceMut},
    mem::MaybeUninit,
    os::fd::{AsRawFd, OwnedFd},
    path::Path,
    process::{Command, Stdio},
};

use rustix::{
    io::Errno,
    mount::{MountFlags, mount},
    net::{
        AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
        recvmsg, socketpair,
    },
    process::{getgid, getuid},
};

use crate::flags;

/// File system type in mount tables; mount(8) looks for a helper of this type first, then of `fuse`.
const TYPE: &str = "fuse.millrace";
/// The device of FUSE.
pub const DEVICE: &str = "/dev/fuse";
/// File type bits of a directory in octal, for the mount option `rootmode`.
const DIRECTORY: &str = "40000";

/// Parameters of mount(2).
#[derive(Debug, Clone)]
pub struct MountRequest {
    /// Source shown in mount tables.
    pub source: String,
    /// Flags of mount(2).
    pub flags: MountFlags,
    /// Other users may access the mount (`allow_other`).
    pub allow_other: bool,
    /// The kernel checks permissions by mode (`default_permissions`).
    pub default_permissions: bool,
}

impl MountRequest {
    /// Mounts on `at` and returns the FUSE device. Falls back to fusermount3 without the privilege to mount.
    ///
    /// # Errors
    /// Those of opening the device, of mount(2), and the message of fusermount3.
    pub fn mount(&self, at: &Path) -> io::Result<OwnedFd> {
        let device = OpenOptions::new().read(true).write(true).open(DEVICE)?;
        match mount(&self.source, at, TYPE, self.flags, self.data(&device)?.as_c_str()) {
            Ok(()) => Ok(device.into()),
            Err(Errno::PERM) => self.fusermount(at),
            Err(e) => Err(e.into()),
        }
    }

    /// The data argument of mount(2).
    fn data(&self, device: &File) -> io::Result<CString> {
        let (fd, uid, gid) = (device.as_raw_fd(), getuid().as_raw(), getgid().as_raw());
        let mut data = format!("fd={fd},rootmode={DIRECTORY},user_id={uid},group_id={gid}");
        for name in self.option_names() {
            data.push(',');
            data.push_str(name);
        }
        CString::new(data).map_err(io::Error::other)
    }

    /// Options that are passed in the data string, not as flags.
    fn option_names(&self) -> impl Iterator<Item = &'static str> {
        let words = [("allow_other", self.allow_other), ("default_permissions", self.default_permissions)];
        words.into_iter().filter_map(|(name, is_set)| is_set.then_some(name))
    }

    /// Runs the set-user-ID helper, which opens the device, mounts, and sends the device over the socket on
    /// its standard input.
    fn fusermount(&self, at: &Path) -> io::Result<OwnedFd> {
        let (receiver, sender) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        let fixed = ["subtype=millrace".to_owned(), format!("fsname={}", escaped(&self.source))];
        let words = flags::names(self.flags).chain(self.option_names()).map(str::to_owned);
        let options = fixed.into_iter().chain(words).collect::<Vec<_>>().join(",");
        let mut command = Command::new(crate::mountpoint::fusermount_program());
        command.args(["-o", &options, "--"]).arg(at).env("_FUSE_COMMFD", "0");
        let out = command.stdin(Stdio::from(sender)).stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
        drop(command); // Closes the other end of the socket.
        if !out.status.success() {
            return Err(io::Error::other(String::from_utf8_lossy(&out.stderr).trim().to_owned()));
        }
        received(&receiver)
    }
}

/// Escapes a value for a comma-separated list.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace(',', "\\,")
}

/// Receives a file descriptor over a socket.
fn received(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let mut sent = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut descriptors) => descriptors.next(),
        _ => None,
    });
    sent.next().ok_or_else(|| io::Error::other("fusermount3 sent no descriptor of /dev/fuse"))
}

#[cfg(test)]
mod tests {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

    use super::*;

    #[test]
    fn mount_data_contains_fuse_options() {
        let request = MountRequest {
            source: "nfs://h/e".into(),
            flags: MountFlags::NOSUID,
            allow_other: true,
            default_permissions: true,
        };
        let data = request.data(&File::open("/dev/null").unwrap()).unwrap().into_string().unwrap();
        assert!(data.starts_with("fd=") && data.ends_with(",allow_other,default_permissions"), "{data}");
        assert!(data.contains(",rootmode=40000,user_id="), "{data}");
        assert_eq!(escaped("nfs://h/a,b\\c"), "nfs://h/a\\,b\\\\c");
    }

    #[test]
    fn receives_a_descriptor_or_reports_its_absence() {
        let pair = || socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None);
        let (receiver, sender) = pair().unwrap();
        let file = tempfile::tempfile().unwrap();
        let sent = [std::os::fd::AsFd::as_fd(&file)];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        assert!(control.push(SendAncillaryMessage::ScmRights(&sent)));
        sendmsg(&sender, &[io::IoSlice::new(&[0])], &mut control, SendFlags::empty()).unwrap();
        let got = rustix::fs::fstat(received(&receiver).unwrap()).unwrap();
        assert_eq!(got.st_ino, rustix::fs::fstat(&file).unwrap().st_ino);

        let (receiver, sender) = pair().unwrap();
        drop(sender);
        assert!(received(&receiver).is_err());
    }
}
