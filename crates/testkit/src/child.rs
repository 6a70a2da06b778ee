//! Processes that end with the test that started them.

use std::path::PathBuf;
use std::process::Command;

/// `setpriv` asks the kernel to kill the process when the thread that started it ends: a test that
/// is itself killed runs no destructor. Without `setpriv`, only the destructor kills it.
#[must_use]
pub fn dying_with_this_thread(binary: PathBuf) -> Command {
    let setpriv = PathBuf::from("/usr/bin/setpriv");
    if !setpriv.exists() {
        return Command::new(binary);
    }
    let mut command = Command::new(setpriv);
    command.args(["--pdeathsig", "KILL"]).arg(binary);
    command
}

/// A port that is free when it is chosen; another program may take it before it is used.
pub(crate) fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}
