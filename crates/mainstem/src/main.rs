//! The broker in one binary: `mainstem` serves; `mainstem pub`, `sub`, `topic`, `produce`, `consume`, `group`,
//! `queue` and `bench` are its tools.

mod bindings;
mod cli;
mod config;
mod operations;
mod queues;
mod serve;
mod storage;
mod tool;
mod watched;

use std::io::Write;
use std::process::ExitCode;

use cli::Command;

fn main() -> ExitCode {
    let outcome = match cli::parse() {
        Command::Serve(args) => serve::serve(&args),
        Command::Pub(args) => return tool::publish(&args),
        Command::Sub(args) => return tool::subscribe(&args),
        Command::Topic(args) => return tool::topic(&args),
        Command::Produce(args) => return tool::produce(&args),
        Command::Consume(args) => return tool::consume(&args),
        Command::Group(args) => return tool::group(&args),
        Command::Queue(args) => return tool::queue(&args),
        Command::Binding(args) => return tool::binding(&args),
        Command::Bench(command) => return tool::bench(&command),
        Command::ConfigReference => print_config_reference(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("mainstem: {error}");
            ExitCode::FAILURE
        }
    }
}

fn print_config_reference() -> Result<(), String> {
    std::io::stdout().write_all(config::reference().as_bytes()).map_err(|error| format!("stdout: {error}"))
}
