//! The Docker client, and images made from this machine's busybox.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

fn client() -> Command {
    let named = Path::new("/usr/bin/docker");
    let mut client = Command::new(if named.exists() { named } else { Path::new("docker") });
    client.env("DOCKER_API_VERSION", "1.41");
    client
}

/// Runs the Docker client; its output where it succeeded.
pub(crate) fn docker(args: &[&str]) -> Option<String> {
    let output = client().args(args).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// An image of the static busybox: `env` for its processes, the commands that it has, and empty
/// directories with their modes.
pub(crate) fn busybox(image: &str, env: &str, commands: &[&str], directories: &[(&str, u32)]) {
    let header = |kind, mode| {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(0);
        header.set_mode(mode);
        header
    };
    let mut tar = tar::Builder::new(Vec::new());
    tar.append_path_with_name("/bin/busybox", "bin/busybox").unwrap();
    for name in commands {
        let mut link = header(tar::EntryType::Symlink, 0o777);
        tar.append_link(&mut link, format!("bin/{name}"), "busybox").unwrap();
    }
    for (directory, mode) in directories {
        let mut header = header(tar::EntryType::Directory, *mode);
        tar.append_data(&mut header, directory, std::io::empty()).unwrap();
    }
    let mut import = client()
        .args(["import", "--change", &format!("ENV {env}"), "-", image])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    import.stdin.take().unwrap().write_all(&tar.into_inner().unwrap()).unwrap();
    assert!(import.wait().unwrap().success());
}
