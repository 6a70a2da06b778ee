//! `sluicegate completions` and `sluicegate man`: completions for a shell, and the manual.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use crate::error::CliError;
use crate::output;

/// Print the completions of a shell.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sluicegate completions bash > sluicegate.bash     # then: source sluicegate.bash
  sluicegate completions zsh > _sluicegate          # in a folder of $fpath

Exit codes: 0 printed, 2 bad input.")]
pub(crate) struct Completions {
    /// The shell.
    shell: Shell,
}

/// Print the manual, or write a page for every command.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  sluicegate man > sluicegate.1                     # then: man ./sluicegate.1
  sluicegate man --folder man1

Exit codes: 0 printed or written, 2 bad input, 6 a page could not be written.")]
pub(crate) struct Man {
    /// Write a page for every command into this folder.
    #[arg(long, value_name = "PATH")]
    folder: Option<PathBuf>,
}

pub(crate) fn completions(args: &Completions, mut command: Command) -> Result<ExitCode, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, "sluicegate", &mut script);
    std::io::stdout().lock().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn man(args: &Man, command: Command) -> Result<ExitCode, CliError> {
    let Some(folder) = &args.folder else {
        clap_mangen::Man::new(command).render(&mut std::io::stdout().lock())?;
        return Ok(ExitCode::SUCCESS);
    };
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(command, folder)?;
    let pages = std::fs::read_dir(folder)?.count();
    output::line(&format!("{} in {}", output::counted(pages, "page"), folder.display()))?;
    Ok(ExitCode::SUCCESS)
}
