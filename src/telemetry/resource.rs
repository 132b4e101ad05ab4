//! The resource: who and where this process is.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use opentelemetry::{Key, KeyValue, Value};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::{ResourceDetector, TelemetryResourceDetector};

use crate::config::settings::Settings;
use crate::config::variables::{self, Reader, Variable, typed};
use crate::config::{Environment, ServerIdentity};

/// What detectors find on the machine, as a value.
#[derive(Debug)]
pub(crate) struct Machine {
    pub host_name: Option<String>,
    pub pid: u32,
    /// Whether `/var/run/secrets/kubernetes.io` is there.
    pub kubernetes_secrets: bool,
    /// Counts the GPUs where `CUDA_VISIBLE_DEVICES` does not tell.
    pub gpus: fn() -> Option<i64>,
}

impl Machine {
    /// This one.
    pub(crate) fn this() -> Self {
        Self {
            host_name: Some(gethostname::gethostname().to_string_lossy().into_owned()).filter(|name| !name.is_empty()),
            pid: std::process::id(),
            kubernetes_secrets: Path::new("/var/run/secrets/kubernetes.io").exists(),
            gpus: || count_gpus(Command::new("nvidia-smi"), NVIDIA_SMI_TIMEOUT),
        }
    }
}

/// The resource of this process, and what was wrong with the variables it is made from.
///
/// Later attributes win: `OTEL_RESOURCE_ATTRIBUTES`, then upstream's basics and Gym's attributes, then
/// `extra`, then what detectors find. Where `CUDA_VISIBLE_DEVICES` is not set and there is an
/// `nvidia-smi`, it is asked, for five seconds at most.
pub(crate) fn resource(
    env: &Environment,
    settings: &Settings,
    identity: &ServerIdentity,
    service_version: Option<&str>,
    extra: &[KeyValue],
) -> (Resource, Vec<String>) {
    resource_on(&Machine::this(), env, settings, identity, service_version, extra)
}

fn resource_on(
    machine: &Machine,
    env: &Environment,
    settings: &Settings,
    identity: &ServerIdentity,
    service_version: Option<&str>,
    extra: &[KeyValue],
) -> (Resource, Vec<String>) {
    let mut reader = Reader::new(env);
    let mut attributes = Attributes::default();
    for (key, value) in TelemetryResourceDetector.detect().iter() {
        attributes.set(key.clone(), value.clone());
    }
    for (key, value) in reader.read(&typed::OTEL_RESOURCE_ATTRIBUTES).set().unwrap_or_default() {
        attributes.set(key, value);
    }
    basics(&mut attributes, &mut reader, settings, service_version);
    gym(&mut attributes, settings, identity);
    for KeyValue { key, value, .. } in extra {
        attributes.set(key.clone(), value.clone());
    }
    attributes.mirror("deployment.environment", "deployment.environment.name");
    let instance =
        [Some(settings.run_id.as_str()), identity.name()].into_iter().flatten().collect::<Vec<_>>().join("-");
    attributes.set_default("service.instance.id", format!("{instance}-{}", machine.pid));
    host(&mut attributes, machine, env);
    slurm(&mut attributes, &mut reader);
    kubernetes(&mut attributes, machine, &mut reader);
    let pairs = attributes.0.into_iter().map(|(key, value)| KeyValue::new(key, value));
    (Resource::builder_empty().with_attributes(pairs).build(), reader.warnings)
}

/// Attributes by key; the last value set counts.
#[derive(Default)]
struct Attributes(BTreeMap<Key, Value>);

impl Attributes {
    fn set(&mut self, key: impl Into<Key>, value: impl Into<Value>) {
        self.0.insert(key.into(), value.into());
    }

    fn set_default(&mut self, key: &'static str, value: String) {
        self.0.entry(key.into()).or_insert_with(|| value.into());
    }

    /// Sets the attribute to the variable's value; an unset variable sets none.
    fn set_from(&mut self, key: &'static str, reader: &mut Reader<'_>, variable: &Variable<String>) {
        if let Some(value) = reader.read(variable).set() {
            self.set(key, value);
        }
    }

    /// Where one of two names of the same thing is set, sets the other to the same value.
    fn mirror(&mut self, one: &'static str, other: &'static str) {
        match (self.0.get(one), self.0.get(other)) {
            (Some(value), None) => self.set(other, value.clone()),
            (None, Some(value)) => self.set(one, value.clone()),
            _ => {}
        }
    }
}

fn basics(attributes: &mut Attributes, reader: &mut Reader<'_>, settings: &Settings, service_version: Option<&str>) {
    attributes.set("nemo.run.id", settings.run_id.clone());
    if let Some(version) = service_version {
        attributes.set("service.version", version.to_owned());
    }
    attributes.set_from("nemo.user.id", reader, &typed::NEMO_GYM_OTEL_USER_ID);
    attributes.set_from("wandb.entity", reader, &typed::WANDB_ENTITY);
    attributes.set_from("wandb.project", reader, &typed::WANDB_PROJECT);
    if let Some(environment) = reader.read(&typed::DEPLOYMENT_ENV).set() {
        attributes.set("deployment.environment", environment.clone());
        attributes.set("deployment.environment.name", environment);
    }
    attributes.set("nv.dl.rank", 0);
    attributes.set("nv.dl.world_size", 1);
}

fn gym(attributes: &mut Attributes, settings: &Settings, identity: &ServerIdentity) {
    let service = &settings.service_name;
    attributes.set(
        "service.name",
        match identity.name() {
            Some(server) if settings.service_name_per_server => format!("{service}/{server}"),
            _ => service.clone(),
        },
    );
    attributes.set("nemo.gym.version", env!("CARGO_PKG_VERSION"));
    attributes.set("nemo.gym.service_group", service.clone());
    if let Some(name) = identity.name() {
        attributes.set("nemo.gym.server.name", name.to_owned());
    }
    if let Some(server_type) = identity.server_type().map(|t| t.as_str()).filter(|t| !t.is_empty()) {
        attributes.set("nemo.gym.server.type", server_type.to_owned());
    }
}

fn host(attributes: &mut Attributes, machine: &Machine, env: &Environment) {
    if let Some(name) = &machine.host_name {
        attributes.set("host.name", name.clone());
    }
    attributes.set("process.pid", i64::from(machine.pid));
    // A blank CUDA_VISIBLE_DEVICES hides every GPU: the one variable where blank is not unset.
    let gpus = match env.raw(variables::CUDA_VISIBLE_DEVICES) {
        Some(_) => match env.get(variables::CUDA_VISIBLE_DEVICES) {
            Some(devices) => i64::try_from(devices.split(',').count()).ok(),
            None => Some(0),
        },
        None => (machine.gpus)(),
    };
    if let Some(gpus) = gpus {
        attributes.set("host.gpu.count", gpus);
    }
}

fn slurm(attributes: &mut Attributes, reader: &mut Reader<'_>) {
    if !reader.is_set(variables::SLURM_JOB_ID) {
        return;
    }
    attributes.set_from("slurm.job.id", reader, &typed::SLURM_JOB_ID);
    attributes.set_from("slurm.job.name", reader, &typed::SLURM_JOB_NAME);
    attributes.set_from("slurm.nodelist", reader, &typed::SLURM_NODELIST);
    attributes.set_from("slurm.nnodes", reader, &typed::SLURM_NNODES);
    attributes.set_from("slurm.ntasks", reader, &typed::SLURM_NTASKS);
    attributes.set_from("slurm.partition", reader, &typed::SLURM_PARTITION);
    attributes.set_from("slurm.cluster.name", reader, &typed::SLURM_CLUSTER_NAME);
}

fn kubernetes(attributes: &mut Attributes, machine: &Machine, reader: &mut Reader<'_>) {
    if !machine.kubernetes_secrets && !reader.is_set(variables::KUBERNETES_SERVICE_HOST) {
        return;
    }
    attributes.set_from("k8s.namespace.name", reader, &typed::K8S_NAMESPACE);
    attributes.set_from("k8s.pod.name", reader, &typed::K8S_POD_NAME);
    attributes.set_from("k8s.pod.uid", reader, &typed::K8S_POD_UID);
    attributes.set_from("k8s.node.name", reader, &typed::K8S_NODE_NAME);
    attributes.set_from("k8s.container.name", reader, &typed::K8S_CONTAINER_NAME);
    attributes.set_from("k8s.job.name", reader, &typed::K8S_JOB_NAME);
}

/// How long `nvidia-smi` may take, as upstream.
const NVIDIA_SMI_TIMEOUT: Duration = Duration::from_secs(5);

/// Asks `nvidia-smi` for the number of GPUs. `None` when it is not there, fails, lists none or takes
/// longer than `timeout`. A hanging one is killed; a thread of its own waits for its end, which a hung
/// driver can hold up for ever.
fn count_gpus(mut nvidia_smi: Command, timeout: Duration) -> Option<i64> {
    let deadline = Instant::now() + timeout;
    nvidia_smi.args(["--query-gpu=index", "--format=csv,noheader"]);
    let mut child = nvidia_smi.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().ok()?;
    let output = child.stdout.take()?;
    let (sender, receiver) = mpsc::sync_channel(1);
    let reading = std::thread::Builder::new().name("nvidia-smi".to_owned()).spawn(move || {
        let mut text = Vec::new();
        // The longest sensible answer is far shorter.
        let complete = output.take(64 * 1024).read_to_end(&mut text).is_ok();
        let _ = sender.send(complete.then_some(text));
    });
    let text = match reading {
        Ok(_) => receiver.recv_timeout(timeout).ok().flatten(),
        Err(_) => None,
    };
    let succeeded = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status.success(),
            Ok(None) if text.is_some() && Instant::now() < deadline => std::thread::sleep(Duration::from_millis(2)),
            _ => {
                let _ = child.kill();
                let _ = std::thread::Builder::new().name("nvidia-smi".to_owned()).spawn(move || child.wait());
                break false;
            }
        }
    };
    let lines = String::from_utf8_lossy(text.as_deref().filter(|_| succeeded)?)
        .lines()
        .filter(|l| !l.trim().is_empty())
        .count();
    i64::try_from(lines).ok().filter(|count| *count > 0)
}

#[cfg(test)]
mod tests;
