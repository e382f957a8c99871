//! Processes that a test starts in order to kill them: this very test binary once more, with one test alone, which the
//! environment tells what to do.

use std::io::{BufRead, BufReader, Lines, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdout, Command, Stdio};

/// What a process says first when it stands where it is to be killed.
pub(crate) const STOPPED: &str = "stopped";

const SIGKILL: i32 = 9;
const SIGXFSZ: i32 = 25;

/// What happens at a write beyond the largest size that a file may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Beyond {
    /// What fits is written, and at the rest the system kills the process.
    Death,
    /// What fits is written, and the rest is an error.
    Refusal,
}

/// The largest size of a file, as a number of blocks of 512 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileLimit {
    pub(crate) blocks: u64,
    pub(crate) beyond: Beyond,
}

impl FileLimit {
    /// A shell sets the limit and becomes the program.
    fn script(self) -> String {
        let mask = match self.beyond {
            Beyond::Death => "",
            Beyond::Refusal => "trap '' XFSZ; ",
        };
        format!("ulimit -c 0; {mask}ulimit -f {}; exec \"$0\" \"$@\"", self.blocks)
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Success,
    Failure,
    /// By the system, at a write beyond the file limit.
    Torn,
    /// By [`Process::kill`].
    Killed,
}

pub(crate) struct Process {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Process {
    /// Starts the test function `test` of this binary, given with its modules.
    pub(crate) fn start(test: &str, variables: &[(&str, String)], limit: Option<FileLimit>) -> Process {
        let command = match limit {
            None => Command::new(std::env::current_exe().unwrap()),
            Some(limit) => through_shell(&limit.script()),
        };
        Process::run(command, test, variables)
    }

    /// The same by way of a shell script, which has to end with `exec "$0" "$@"`.
    pub(crate) fn start_in(script: &str, test: &str, variables: &[(&str, String)]) -> Process {
        Process::run(through_shell(script), test, variables)
    }

    fn run(mut command: Command, test: &str, variables: &[(&str, String)]) -> Process {
        let mut child = command
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .envs(variables.iter().map(|(name, value)| (name, value)))
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Process { child, lines }
    }

    /// The next line that the process says; none once it has ended.
    pub(crate) fn hear(&mut self) -> Option<String> {
        self.lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.find('@').map(|at| line[at + 1..].to_owned()))
    }

    /// SIGKILL: nothing of the process runs any more.
    pub(crate) fn kill(mut self) -> End {
        self.child.kill().unwrap();
        self.end()
    }

    /// Waits until the process ends by itself.
    pub(crate) fn end(mut self) -> End {
        let status = self.child.wait().unwrap();
        match status.signal() {
            None if status.success() => End::Success,
            None => End::Failure,
            Some(SIGKILL) => End::Killed,
            Some(SIGXFSZ) => End::Torn,
            Some(signal) => panic!("ended by signal {signal}"),
        }
    }
}

fn through_shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).arg(std::env::current_exe().unwrap());
    command
}

/// In the started process: says a line to the test that started it.
pub(crate) fn say(line: &str) {
    println!("@{line}");
    std::io::stdout().flush().unwrap();
}

/// In the started process: says that it stands where it is to be killed.
pub(crate) fn wait_to_be_killed() -> ! {
    say_last(STOPPED)
}

/// In the started process: says a line and does nothing more, until it is killed.
pub(crate) fn say_last(line: &str) -> ! {
    say(line);
    loop {
        std::thread::park();
    }
}

/// In the started process: what it was told; none in an ordinary run of the tests.
pub(crate) fn told(variable: &str) -> Option<String> {
    std::env::var(variable).ok()
}
