//! The tests of the Python parts, which need only Python itself.

use std::path::Path;
use std::process::Command;

#[test]
fn the_tests_in_python_pass() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = std::env::join_paths([dir.join("agent"), dir.join("image")]).unwrap();
    let output = Command::new("python3")
        .args(["-B", "-m", "unittest", "discover", "-s", "tests", "-v"])
        .current_dir(dir)
        .env("PYTHONPATH", path)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{told}");
    assert!(!told.contains("Ran 0 tests"), "{told}");
}
