//! The steps of the container file, in a Debian root instead of an image: its user, a root directory that cannot be written,
//! no capabilities, and its command and health check.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context, Result, ensure};

use super::Case;
use crate::{
    lab::{self, Lab},
    program::{self, Background, Output},
};

const FILE: &str = include_str!("../../../../packaging/container/Containerfile");
const CONFIGURATION: &str = include_str!("../../../../packaging/container/millrace.toml");
/// Time limit of the health check.
const CHECK_LIMIT: Duration = Duration::from_secs(30);

pub(super) fn cases() -> Vec<Case> {
    vec![Case::new("container/serve", serve)]
}

/// Serves a volume, and checks the health, a copy to the volume, and that it survives a restart of the container.
fn serve(lab: &mut Lab) -> Result<()> {
    let container = Container::new(&lab.directory("container")?)?;
    let written = lab.dir.join("written");
    fs::write(&written, "content")?;
    let url = "nfs://127.0.0.1/data/file";
    let copy = [written.display().to_string(), url.into()];
    let server = container.start(&lab.dir.join("log"))?;
    container.check_health()?.ok()?;
    lab::millrace(&["put", &copy[0], &copy[1]])?.ok()?;
    let owner = program::must("stat", &["--format=%u", &container.path("/data/file")])?.stdout;
    ensure!(owner.trim() == container.user, "the file belongs to {owner}");
    ensure!(fs::write(container.path("/etc/changed"), "").is_err(), "the root directory can be written");
    server.stop()?;
    container.check_health()?.failed()?;
    let _again = container.start(&lab.dir.join("log-again"))?;
    let read = lab.dir.join("read");
    lab::millrace(&["get", url, &read.display().to_string()])?.ok()?;
    ensure!(fs::read_to_string(read)? == "content", "the file has other content after a restart");
    lab.finish(Vec::new(), &[])
}

/// A container that is set up and not started.
struct Container {
    root: PathBuf,
    user: String,
}

impl Container {
    /// Executes the steps of the file that need no network, and mounts the volumes. Everything ends with the sandbox.
    fn new(dir: &Path) -> Result<Self> {
        let base = std::env::var("MILLRACE_INTEROP_ROOT").context("MILLRACE_INTEROP_ROOT is not set")?;
        let (layer, root) = (dir.join("layer"), dir.join("root"));
        for folder in [&layer, &root] {
            fs::create_dir_all(folder)?;
        }
        mount(&["-t", "tmpfs", "none", &text(&layer)])?;
        for folder in ["upper", "work"] {
            fs::create_dir(layer.join(folder))?;
        }
        let layers = format!("lowerdir={base},upperdir={0}/upper,workdir={0}/work", layer.display());
        mount(&["-t", "overlay", "-o", &layers, "none", &text(&root)])?;
        let container = Self { root, user: instruction("USER")?.into() };
        fs::copy(lab::millrace_program()?, container.path("/usr/bin/millrace"))?;
        fs::write(container.path("/etc/millrace.toml"), CONFIGURATION)?;
        let steps: Vec<_> = FILE.lines().filter_map(|line| line.trim().strip_prefix("&& ")).collect();
        for step in steps.iter().filter(|step| !step.starts_with("rm ")) {
            let step = step.trim_end_matches(" \\");
            program::must("chroot", &[&text(&container.root), "sh", "-c", step])?;
        }
        for volume in words("VOLUME")? {
            let path = container.path(&volume);
            let owner = program::must("stat", &["--format=%u:%g", &path])?.stdout;
            mount(&["-t", "tmpfs", "none", &path])?;
            program::must("chown", &[owner.trim(), &path])?;
        }
        mount(&["-t", "proc", "none", &container.path("/proc")])?;
        mount(&["--bind", "/dev", &container.path("/dev")])?;
        mount(&["-o", "remount,ro", &text(&container.root)])?;
        Ok(container)
    }

    /// A path in the container, as the host has it.
    fn path(&self, path: &str) -> String {
        format!("{}{path}", self.root.display())
    }

    /// The arguments of `setpriv` that run a command in the container.
    fn inside(&self, command: impl IntoIterator<Item = String>) -> Vec<String> {
        let user = format!("--userspec={}", self.user);
        let enter = ["--no-new-privs", "chroot", &user, &text(&self.root)].map(str::to_owned);
        enter.into_iter().chain(command).collect()
    }

    fn start(&self, log: &Path) -> Result<Background> {
        let command = [words("ENTRYPOINT")?, words("CMD")?].concat();
        Background::start(Command::new("setpriv").args(self.inside(command)), log)
    }

    fn check_health(&self) -> Result<Output> {
        let arguments = self.inside(words("HEALTHCHECK")?);
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        program::run("setpriv", &arguments, CHECK_LIMIT)
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn mount(arguments: &[&str]) -> Result<()> {
    program::must("mount", arguments).map(drop)
}

/// The rest of the line of the file that starts with `name`.
fn instruction(name: &str) -> Result<&'static str> {
    let line = FILE.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.with_context(|| format!("the container file has no {name}"))
}

/// The words of the JSON array in the instruction `name`.
fn words(name: &str) -> Result<Vec<String>> {
    let text = instruction(name)?;
    let array = text.find('[').and_then(|at| text.get(at..)).unwrap_or_default();
    serde_json::from_str(array).with_context(|| format!("{name} has no array of words"))
}
