//! A power cut leaves no file with its name and another content, and nothing that was reported
//! as done is lost. `make test-power-cut` tries more moments, and all file systems.

mod cp_support;

use std::path::Path;
use std::process::Command;

use cp_support::*;

#[test]
fn what_is_reported_as_done_survives_a_power_cut() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/scripts/power_cut.sh");
    let out =
        Command::new(script).args([EXS_CP, "--fs", "ext4", "--moments", "3"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    print!("{text}");
    if out.status.code() == Some(77) {
        eprint!("{text}");
        return;
    }
    assert!(out.status.success(), "{text}{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(text.matches("well: ext4").count() + text.matches("skipped:").count(), 4, "{text}");
}
