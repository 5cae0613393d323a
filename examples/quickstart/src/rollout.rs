//! One trajectory: its sandbox, its actions with think times between them, its reward.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rollwright_proto::v1::{Command, ExecuteRequest, command, fault};

use crate::client::{Client, Ended, Trouble};
use crate::progress::{Counted, Granted, Live};
use crate::record::{ActionRecord, SandboxRecord, Span, TrajectoryRecord};
use crate::reward::{Verdict, grade};
use crate::workload::Trajectory;

/// Where the package is in a sandbox.
const REPO: &str = "/workspace/repo";
/// Tries of what an infrastructure fault interrupted.
const TRIES: u32 = 2;

/// What all trajectories of a run share.
#[derive(Debug)]
pub(crate) struct Scene {
    pub(crate) client: Client,
    pub(crate) live: Arc<Live>,
    pub(crate) begin: Instant,
    /// Factor on the recorded think times.
    pub(crate) think_scale: f64,
    /// Start of every id, unique to this run.
    pub(crate) prefix: String,
}

impl Scene {
    fn now_s(&self) -> f64 {
        self.begin.elapsed().as_secs_f64()
    }
}

/// Plays a trajectory to its reward. It always ends with a verdict.
pub(crate) async fn play(scene: Arc<Scene>, trajectory: Trajectory) -> TrajectoryRecord {
    let id = format!("{}/{}/{}", scene.prefix, trajectory.group, trajectory.rollout);
    let mut player = Player {
        record: TrajectoryRecord {
            id: id.clone(),
            group: trajectory.group.clone(),
            begin_s: scene.now_s(),
            end_s: 0.0,
            thinks: Vec::new(),
            sandboxes: Vec::new(),
            actions: Vec::new(),
            verdict: Verdict::Unscored { reason: "it did not get that far".to_owned() },
        },
        scene: &scene,
        trajectory: &trajectory,
        sandbox_queue_s: 0.0,
    };
    player.record.verdict = match player.work(&id).await {
        Ok(edited) => player.graded(&id, &edited).await,
        Err(trouble) => Verdict::Unscored { reason: trouble.to_string() },
    };
    player.record.end_s = scene.now_s();
    scene.live.done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    player.record
}

/// A file that the trajectory changed: its directory in the sandbox, and a tar of it.
type Edited = (String, Vec<u8>);

struct Player<'a> {
    scene: &'a Scene,
    trajectory: &'a Trajectory,
    record: TrajectoryRecord,
    /// What the open sandbox waited for its place, until its first action takes it over.
    sandbox_queue_s: f64,
}

impl Player<'_> {
    /// The trajectory itself, in a sandbox of its own; returns what it changed.
    async fn work(&mut self, id: &str) -> Result<Vec<Edited>, Trouble> {
        let opened = self.open(id, "python").await?;
        let result = self.steps(id).await;
        self.close(id, opened).await;
        result
    }

    async fn steps(&mut self, id: &str) -> Result<Vec<Edited>, Trouble> {
        let trajectory = self.trajectory;
        for (number, step) in trajectory.steps.iter().enumerate() {
            self.think(step.think_s).await;
            let stdin = if step.name == "edit" { trajectory.edit.as_str() } else { "" };
            // An exit code is news to the model, not a reason to stop.
            self.execute(id, &number.to_string(), &step.name, &step.profile, &step.shell, stdin)
                .await?;
        }
        let mut edited = Vec::new();
        for file in trajectory.edited_files() {
            let path = Path::new(REPO).join(&file);
            let directory = path.parent().unwrap_or(Path::new(REPO)).display().to_string();
            let tar = self.scene.client.get_tar(id, &path.display().to_string()).await?;
            edited.push((directory, tar));
        }
        Ok(edited)
    }

    /// The reward; an infrastructure fault is tried again, and then means no reward.
    async fn graded(&mut self, id: &str, edited: &[Edited]) -> Verdict {
        let mut reason = String::new();
        for attempt in 1..=TRIES {
            let id = match attempt {
                1 => format!("{id}.reward"),
                _ => format!("{id}.reward-{attempt}"),
            };
            match self.grade_once(&id, edited).await {
                Ok(verdict) => return verdict,
                Err(trouble) => {
                    reason = trouble.to_string();
                    if !trouble.is_infrastructure() {
                        break;
                    }
                }
            }
        }
        Verdict::Unscored { reason }
    }

    async fn grade_once(&mut self, id: &str, edited: &[Edited]) -> Result<Verdict, Trouble> {
        let opened = self.open(id, "pristine").await?;
        let result = self.grade_in(id, edited).await;
        self.close(id, opened).await;
        result
    }

    async fn grade_in(&mut self, id: &str, edited: &[Edited]) -> Result<Verdict, Trouble> {
        let trajectory = self.trajectory;
        let unpacked =
            self.execute(id, "unpack", "unpack", "shell", &trajectory.unpack, "").await?;
        if unpacked.finished.exit_code != Some(0) {
            let reason = format!("the package was not unpacked: {:?}", unpacked.finished.exit_code);
            return Ok(Verdict::Unscored { reason });
        }
        for (directory, tar) in edited {
            self.scene.client.put_tar(id, directory, tar).await?;
        }
        let expected = trajectory.suite_tests;
        match self.execute(id, "suite", "reward", "tests", &trajectory.suite, "").await {
            Ok(suite) => Ok(grade(suite.finished.exit_code, &suite.stdout, expected)),
            // The suite ran and did not end in its time: the edit made it so. A sandbox
            // that was not ready in time is another matter, and no reward.
            Err(trouble) if trouble.kind == fault::Kind::Timeout => {
                Ok(Verdict::Scored { reward: 0.0, passed: 0, expected })
            }
            Err(trouble) => Err(trouble),
        }
    }

    async fn think(&mut self, unscaled_s: f64) {
        let _thinking = Counted::new(&self.scene.live.thinking);
        let begin_s = self.scene.now_s();
        tokio::time::sleep(Duration::from_secs_f64(unscaled_s * self.scene.think_scale)).await;
        self.record.thinks.push(Span { begin_s, end_s: self.scene.now_s() });
    }

    async fn open(&mut self, id: &str, template: &str) -> Result<SandboxRecord, Trouble> {
        let _opening = Counted::new(&self.scene.live.opening);
        let requested_s = self.scene.now_s();
        let response = self.scene.client.open(id, template).await?;
        let times = response.times.unwrap_or_default();
        self.sandbox_queue_s = times.queue_s;
        Ok(SandboxRecord {
            template: template.to_owned(),
            requested_s,
            ready_s: self.scene.now_s(),
            closed_s: 0.0,
            queue_s: times.queue_s,
        })
    }

    async fn close(&mut self, id: &str, mut sandbox: SandboxRecord) {
        if let Err(trouble) = self.scene.client.close(id).await {
            // Standalone removes what is open when it stops; the check after it says so.
            eprintln!("\n{id} was not closed: {trouble}");
        }
        sandbox.closed_s = self.scene.now_s();
        self.record.sandboxes.push(sandbox);
    }

    /// Runs one action to its end and records it.
    async fn execute(
        &mut self,
        trajectory_id: &str,
        key: &str,
        name: &str,
        profile: &str,
        shell: &str,
        stdin: &str,
    ) -> Result<Ended, Trouble> {
        let mut tried = 1;
        loop {
            let command = Command {
                program: Some(command::Program::Shell(shell.to_owned())),
                stdin: stdin.to_owned().into(),
                ..Command::default()
            };
            let request = ExecuteRequest {
                action_id: format!("{trajectory_id}/{key}-{tried}"),
                trajectory_id: trajectory_id.to_owned(),
                profile: profile.to_owned(),
                command: Some(command),
                ..ExecuteRequest::default()
            };
            let live = &self.scene.live;
            let submitted_s = self.scene.now_s();
            let mut queued = Some(Counted::new(&live.queued));
            let mut granted = None;
            let result = self
                .scene
                .client
                .execute(request, |started| {
                    queued = None;
                    granted = Some(Granted::new(live, started.cpu_units));
                })
                .await;
            drop((queued, granted));
            match result {
                Ok(ended) => {
                    let usage = ended.finished.usage.unwrap_or_default();
                    self.record.actions.push(ActionRecord {
                        name: name.to_owned(),
                        profile: profile.to_owned(),
                        submitted_s,
                        ended_s: self.scene.now_s(),
                        queue_s: usage.queue_s,
                        sandbox_queue_s: std::mem::take(&mut self.sandbox_queue_s),
                        exec_s: usage.exec_s,
                        cpu_s: usage.cpu_s,
                        units: ended.finished.cpu_units,
                        cores: ended.cores.clone(),
                        exit_code: ended.finished.exit_code,
                    });
                    return Ok(ended);
                }
                Err(trouble) if trouble.is_infrastructure() && tried < TRIES => tried += 1,
                Err(trouble) => return Err(trouble),
            }
        }
    }
}
