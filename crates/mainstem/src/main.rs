//! The broker in one binary: `mainstem` serves; `mainstem pub`, `sub` and `bench` are its tools.

mod cli;
mod config;
mod serve;

use std::process::ExitCode;

use cli::Command;

fn main() -> ExitCode {
    let outcome = match cli::parse() {
        Command::Serve(args) => serve::serve(&args),
        other => Err(format!("not yet: {other:?}")),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mainstem: {error}");
            ExitCode::FAILURE
        }
    }
}
