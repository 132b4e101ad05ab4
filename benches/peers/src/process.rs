//! A process for each candidate, as providers, subscribers and propagators are process-wide. The parent writes a line, the
//! child answers it with a line of figures; a child ends with its input.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub struct Peer {
    child: Child,
    questions: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Peer {
    pub fn start(role: &str, name: &str) -> Self {
        let program = std::env::current_exe().expect("path of this program");
        let mut child = Command::new(program)
            .args([role, name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program runs");
        let (questions, answers) = (child.stdin.take(), child.stdout.take().expect("a pipe"));
        Self { child, questions, answers: BufReader::new(answers) }
    }

    pub fn ask(&mut self, question: &str) -> Vec<f64> {
        let mut questions = self.questions.as_ref().expect("open until dropped");
        writeln!(questions, "{question}").expect("the child reads");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("the child answers");
        let figures: Result<Vec<_>, _> = answer.split_whitespace().map(str::parse).collect();
        figures.ok().filter(|figures| !figures.is_empty()).unwrap_or_else(|| panic!("{question}: {answer}"))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        drop(self.questions.take());
        let _ = self.child.wait();
    }
}

/// The child's side.
pub fn answer(mut figures: impl FnMut(&str) -> Vec<f64>) {
    for question in std::io::stdin().lines() {
        let figures = figures(&question.expect("the parent's questions"));
        println!("{}", figures.iter().map(f64::to_string).collect::<Vec<_>>().join(" "));
    }
}

/// Nanoseconds that this thread (`CLOCK_THREAD_CPUTIME_ID`) or process (`CLOCK_PROCESS_CPUTIME_ID`) has run: what other
/// programs on the machine take does not count.
pub fn cpu_nanoseconds(clock: libc::clockid_t) -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` lives through the call.
    assert_eq!(unsafe { libc::clock_gettime(clock, &mut time) }, 0);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}
