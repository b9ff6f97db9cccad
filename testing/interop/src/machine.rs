//! The kinds of machine of a guest, and the command that starts each.

use std::{path::Path, process::Command, time::Duration};

use anyhow::{Result, anyhow};

use crate::{guest::GuestOptions, network};

/// The UML guest's first process, which `testing/interop/run` installs: mounts the host's files and executes the
/// agent.
const UML_INIT: &str = "/interop-init";

/// A kind of machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Machine {
    /// A kernel with our configuration that runs as an ordinary program: quick.
    Uml,
    /// The kernel of Debian on an emulated PC: slow, but exactly the kernel of users.
    Qemu,
}

impl Machine {
    /// The kind that the option `--qemu` selects.
    pub(crate) fn selected(qemu: bool) -> Self {
        if qemu { Self::Qemu } else { Self::Uml }
    }

    /// The factor of time limits relative to the quickest kind.
    pub(crate) fn time_factor(self) -> u32 {
        match self {
            Self::Uml => 1,
            Self::Qemu => 10,
        }
    }

    /// Time limit of a guest's boot.
    pub(crate) fn boot_limit(self) -> Duration {
        Duration::from_secs(60) * self.time_factor()
    }

    /// Time limit of a command without an explicit limit.
    pub(crate) fn command_limit(self) -> Duration {
        Duration::from_secs(120) * self.time_factor()
    }

    /// The command that starts guest `number`, whose tap device exists and whose commands are in `dir`. The
    /// program's standard input and output carry the lines of the agent.
    ///
    /// # Errors
    /// When a variable of `testing/interop/run` is missing.
    pub(crate) fn command(self, number: u32, options: &GuestOptions, dir: &Path) -> Result<Command> {
        match self {
            Self::Uml => uml(number, options, dir),
            Self::Qemu => qemu(number, options, dir),
        }
    }
}

/// The environment variables of the agent.
fn agent_settings(terminal: &str, number: u32, dir: &Path) -> Result<[String; 4]> {
    Ok([
        format!("agent={}", std::env::current_exe()?.display()),
        format!("terminal={terminal}"),
        format!("address={}", network::address(number)),
        format!("commands={}", dir.display()),
    ])
}

fn uml(number: u32, options: &GuestOptions, dir: &Path) -> Result<Command> {
    let tap = network::tap(number);
    let mut command = Command::new(required("MILLRACE_UML_KERNEL")?);
    command
        .arg(format!("mem={}M", options.memory))
        .args([format!("umid=guest{number}"), "uml_dir=/dev/shm/uml".to_owned()])
        .args(["root=/dev/root", "rootfstype=hostfs"])
        .args([&format!("rootflags={}", root(options)?), "rw"])
        // The kernel's messages go to standard error; standard input and output carry the agent's lines.
        .args(["con=null", "con0=null,fd:2", "con1=fd:0,fd:1", "ssl=null", "panic=-1"])
        .arg(format!("vec0:transport=tap,ifname={tap},depth=128,gro=1,mtu={}", options.mtu))
        .arg(format!("init={UML_INIT}"))
        .args(agent_settings("/dev/tty1", number, dir)?)
        .env("TMPDIR", "/dev/shm");
    Ok(command)
}

/// A PC with two serial lines (kernel messages, the agent's lines), a network card and the host's files. The
/// PC is fully emulated (TCG), so that it needs no virtualisation.
fn qemu(number: u32, options: &GuestOptions, dir: &Path) -> Result<Command> {
    let (root, kernel) = (root(options)?, required("MILLRACE_QEMU_KERNEL")?);
    let card = format!("mac=52:54:00:77:00:{:02x},host_mtu={}", number + 1, options.mtu);
    let files = |what: &str, more: &str| format!("local,mount_tag={what},security_model=none{more}");
    let mut command = Command::new("qemu-system-x86_64");
    command
        .args(["-accel", "tcg", "-cpu", "max", "-m", &options.memory.to_string()])
        .args(["-nodefaults", "-no-reboot", "-display", "none"])
        .args(["-chardev", "file,id=console,path=/dev/stderr,append=on", "-serial", "chardev:console"])
        .args(["-chardev", "stdio,id=agent,signal=off", "-serial", "chardev:agent"])
        .args(["-netdev", &format!("tap,id=wire,ifname={},script=no,downscript=no", network::tap(number))])
        .args([
            "-device",
            &format!("virtio-net-pci,netdev=wire,romfile=,{card}"),
            "-device",
            "virtio-rng-pci",
        ])
        .args(["-virtfs", &files("root", &format!(",readonly=on,path={root}"))])
        .args(["-virtfs", &files("host", ",multidevs=remap,path=/")])
        .args(["-kernel", &format!("{kernel}/linux"), "-initrd", &format!("{kernel}/initrd"), "-append"])
        .arg(format!(
            "console=ttyS0 panic=-1 mitigations=off no_timer_check {}",
            agent_settings("/dev/ttyS1", number, dir)?.join(" ")
        ));
    Ok(command)
}

/// The root directory of a guest.
fn root(options: &GuestOptions) -> Result<String> {
    required(if options.tlshd { "MILLRACE_INTEROP_TLS_ROOT" } else { "MILLRACE_INTEROP_ROOT" })
}

fn required(name: &str) -> Result<String> {
    std::env::var(name).map_err(|_| anyhow!("{name} is not set; use testing/interop/run, which sets it"))
}
