//! Asks for confirmation before data is destroyed.

use std::io::{BufRead, IsTerminal, Write};

use crate::error::CliError;
use crate::output::visible;

/// The option of every command that destroys data.
#[derive(clap::Args)]
pub(crate) struct Confirm {
    /// Do not ask.
    #[arg(long, short = 'y')]
    yes: bool,
}

impl Confirm {
    /// Returns if `--yes` was given or the user confirms at the terminal.
    ///
    /// # Errors
    /// [`CliError::BadInput`] if there is no terminal or the answer is no: nothing is done.
    pub(crate) fn ask(&self, what: &str) -> Result<(), CliError> {
        if self.yes {
            return Ok(());
        }
        if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
            return Err(CliError::BadInput(format!(
                "this would {what}; there is no terminal to confirm it, so add --yes"
            )));
        }
        let what = visible(what);
        let _ = write!(std::io::stderr(), "This will {what}. Type yes to go on: ");
        let mut answer = String::new();
        std::io::stdin().lock().read_line(&mut answer)?;
        match answer.trim() {
            "yes" | "y" => Ok(()),
            _ => Err(CliError::bad("nothing was done")),
        }
    }
}
