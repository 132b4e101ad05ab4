//! Runs the rollouts.

use std::io::{IsTerminal as _, Write as _};
use std::ops::Range;
use std::time::{Duration, Instant, SystemTime};

use futures_util::{StreamExt as _, stream};
use nemo_gym_telemetry::egress::TracePropagation;
use nemo_gym_telemetry::job::Job;
use reqwest_middleware::{ClientBuilder, ClientWithMiddleware};
use serde_json::{Value, json};

/// From this many rollouts on, there is a progress bar.
const MANY: usize = 20;

/// How a rollout went, as its caller sees it.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The rollout's id.
    pub id: String,
    pub begun: SystemTime,
    pub duration: Duration,
    /// The reward, or what went wrong.
    pub reward: Result<f64, String>,
}

/// Runs the rollouts of these tasks, `concurrency` at a time.
pub async fn run(job: &Job, agent_url: &str, tasks: Range<usize>, concurrency: usize) -> Vec<Outcome> {
    // A unit struct is all it takes for a caller to be part of the trace.
    let client = reqwest::Client::builder().no_proxy().build().unwrap_or_default();
    let client = ClientBuilder::new(client).with(TracePropagation).build();
    let url = format!("{agent_url}/run");
    // Each rollout is a trace of its own, linked to the job's.
    let count = tasks.len();
    let rollouts = tasks.map(|task| job.rollout(rollout(client.clone(), url.clone(), task)));
    let mut running = stream::iter(rollouts).buffer_unordered(concurrency.max(1));
    let mut progress = Progress::new(count);
    let mut outcomes = Vec::with_capacity(count);
    while let Some(outcome) = running.next().await {
        outcomes.push(outcome);
        progress.show(outcomes.len());
    }
    outcomes
}

async fn rollout(client: ClientWithMiddleware, url: String, task: usize) -> Outcome {
    let tool = json!({
        "type": "function", "name": "get_weather", "description": "", "strict": true,
        "parameters": {
            "type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
            "additionalProperties": false,
        },
    });
    let question = json!({"input": [{"role": "user", "content": "What is the weather in sf?"}], "tools": [tool]});
    let body = json!({"responses_create_params": question, "_ng_task_index": task, "_ng_rollout_index": 0});
    let (begun, started) = (SystemTime::now(), Instant::now());
    let reward = async {
        let reply = client.post(url).json(&body).send().await.map_err(|error| error.without_url().to_string())?;
        if !reply.status().is_success() {
            return Err(format!("the agent answered {}", reply.status()));
        }
        let reply: Value = reply.json().await.map_err(|error| error.without_url().to_string())?;
        reply["reward"].as_f64().ok_or_else(|| "the agent's reply has no reward".to_owned())
    };
    Outcome { id: format!("{task}-0"), reward: reward.await, begun, duration: started.elapsed() }
}

/// Says how the rollouts went. `true` when all were answered.
pub fn summarise(outcomes: &[Outcome]) -> bool {
    let mut durations: Vec<f64> = outcomes.iter().map(|outcome| outcome.duration.as_secs_f64() * 1000.0).collect();
    durations.sort_by(f64::total_cmp);
    let rewards: Vec<f64> = outcomes.iter().filter_map(|outcome| outcome.reward.as_ref().ok().copied()).collect();
    let mean = rewards.iter().sum::<f64>() / rewards.len().max(1) as f64;
    let at = |share: f64| durations.get(((durations.len() - 1) as f64 * share) as usize).copied().unwrap_or_default();
    if !durations.is_empty() {
        println!(
            "{} of {} rollouts answered, mean reward {mean:.2}; {:.1} ms median, {:.1} ms slowest",
            rewards.len(),
            outcomes.len(),
            at(0.5),
            at(1.0),
        );
    }
    for outcome in outcomes {
        if let Err(error) = &outcome.reward {
            println!("rollout {} failed: {error}", outcome.id);
        }
    }
    rewards.len() == outcomes.len()
}

/// A bar on stderr; a line now and then where stderr is no terminal.
#[derive(Debug)]
struct Progress {
    total: usize,
    terminal: bool,
}

impl Progress {
    fn new(total: usize) -> Self {
        Self { total, terminal: std::io::stderr().is_terminal() }
    }

    fn show(&mut self, done: usize) {
        const WIDTH: usize = 40;
        if self.total < MANY {
            return;
        }
        let mut stderr = std::io::stderr().lock();
        let _ = if self.terminal {
            let bar = "█".repeat(WIDTH * done / self.total);
            let end = if done == self.total { "\n" } else { "" };
            write!(stderr, "\rrollouts {bar:░<WIDTH$} {done}/{}{end}", self.total)
        } else if done == self.total || done.is_multiple_of(self.total.div_ceil(10)) {
            writeln!(stderr, "rollouts {done}/{}", self.total)
        } else {
            Ok(())
        };
    }
}
