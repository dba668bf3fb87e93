//! Runs the example as a user does: every reading is stored once, and the hot ones are counted.

use std::process::Command;

#[test]
fn stores_every_reading_and_counts_the_hot_ones() {
    let output =
        Command::new(env!("CARGO_BIN_EXE_example-in-process-bus")).output().expect("the example starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // Readings of 0 to 99 degrees from 4 sensors; 91 to 99 are hot.
    assert_eq!(String::from_utf8_lossy(&output.stdout), "400 readings stored, 36 of them hot\n");
}
