//! The program of sandboxes.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The helper, linked statically as it is shipped; or the one that `ROLLWRIGHT_INIT` names.
pub(crate) fn helper() -> &'static Path {
    static HELPER: OnceLock<PathBuf> = OnceLock::new();
    HELPER.get_or_init(|| {
        if let Some(named) = std::env::var_os("ROLLWRIGHT_INIT") {
            return named.into();
        }
        let status = Command::new(env!("CARGO"))
            .args(["rustc", "-q", "-p", "rollwright-init", "--bin", "rollwright-init"])
            .args(["--", "-C", "target-feature=+crt-static"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(status.success());
        let test = std::env::current_exe().unwrap();
        test.parent().and_then(Path::parent).unwrap().join("rollwright-init")
    })
}
