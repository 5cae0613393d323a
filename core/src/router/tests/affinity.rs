//! Classes of hardware: declared, fallen back to, and found out.

use std::collections::BTreeMap;

use super::world::{World, ask, class, done, spec, task, worker};
use crate::router::cost::{Turn, of_turn};
use crate::router::{
    Affinity, Auto, ClassProfile, Command, Config, Event, ModelShape, Outcome, Usage,
};

/// `RollArt`'s table 2.
const H800: ClassProfile =
    ClassProfile { tflops: 989.5, hbm_tbps: 3.35, hbm_gib: 80.0, cost_per_hour: 2.85, gpus: 1 };
const H20: ClassProfile =
    ClassProfile { tflops: 148.0, hbm_tbps: 4.0, hbm_gib: 96.0, cost_per_hour: 1.0, gpus: 1 };

/// Many short turns with new observations, as in a game.
const PREFILL_HEAVY: Usage = Usage { prompt_tokens: 8000, cached_tokens: 4000, output_tokens: 40 };
/// A long chain of thought.
const DECODE_HEAVY: Usage = Usage { prompt_tokens: 500, cached_tokens: 0, output_tokens: 8000 };

fn declared() -> Config {
    let tasks = BTreeMap::from([(task(0), vec![class(0), class(1)])]);
    let affinity = Affinity::Declared { tasks, default: vec![class(1)] };
    Config { affinity, ..Config::default() }
}

fn auto(min_turns: u32) -> Config {
    let classes = BTreeMap::from([(class(0), H800), (class(1), H20)]);
    let auto = Auto { classes, min_turns, half_life: 64, ..Auto::default() };
    Config { affinity: Affinity::Auto(auto), ..Config::default() }
}

fn preferred(world: &World, n: usize) -> Option<String> {
    let view = world.router.task(&task(n))?;
    view.order.first().map(|(class, _)| class.to_string())
}

fn generate(world: &mut World, n: usize, usage: Usage, turns: usize) {
    for _ in 0..turns {
        let id = world.arrive(&ask(n)).unwrap();
        world.end(id, Outcome::Done(usage));
    }
}

#[test]
fn a_task_goes_to_its_class_and_falls_back_when_that_is_full_or_away() {
    let mut world = World::new(declared());
    world.join(0, spec(0, 1), false);
    world.join(1, spec(1, 2), false);
    let own = world.arrive(&ask(0)).unwrap();
    let other = world.arrive(&ask(0)).unwrap();
    assert_eq!((world.on(own), world.on(other)), (Some(worker(0)), Some(worker(1))));
    world.end(own, done());
    world.end(other, done());

    let fallback =
        |got: usize| Command::Fallback { task: task(0), wanted: class(0), got: class(got) };
    let said = |world: &mut World| {
        let id = crate::version::RequestId(1000 + world.router.task(&task(0)).unwrap().turns_seen);
        let arrived = Event::Arrived { request: id, ask: ask(0) };
        let mut commands = world.router.on_event(arrived, world.now).unwrap();
        let ended = Event::Ended { request: id, outcome: done() };
        commands.extend(world.router.on_event(ended, world.now).unwrap());
        commands.retain(|command| matches!(command, Command::Fallback { .. }));
        commands
    };
    assert_eq!(said(&mut world), vec![], "a full worker is no reason to say so");
    let reason = "no answer".to_owned();
    world.about(0, Event::Unhealthy { worker: worker(0), reason });
    assert_eq!(said(&mut world), vec![fallback(1)]);
    assert_eq!(said(&mut world), vec![], "once");
    world.about(0, Event::Healthy(worker(0)));
    assert_eq!(said(&mut world), vec![fallback(0)]);
    assert_eq!(said(&mut world), vec![]);
}

#[test]
fn under_load_each_class_takes_the_tasks_that_prefer_it() {
    let mut world = World::new(declared());
    world.join(0, spec(0, 1), false);
    world.join(1, spec(1, 1), false);
    let (h800, h20) = (world.arrive(&ask(0)).unwrap(), world.arrive(&ask(1)).unwrap());
    let (math, swe) = (world.arrive(&ask(1)).unwrap(), world.arrive(&ask(0)).unwrap());
    world.end(h800, done());
    assert_eq!((world.on(swe), world.on(math)), (Some(worker(0)), None));
    world.end(h20, done());
    assert_eq!(world.on(math), Some(worker(1)));
}

#[test]
fn the_cost_of_a_turn_orders_the_classes_as_the_paper_measured() {
    let turn = |usage: Usage| Turn {
        prefill: f64::from(usage.prompt_tokens - usage.cached_tokens),
        decode: f64::from(usage.output_tokens),
        context: f64::from(usage.prompt_tokens) + f64::from(usage.output_tokens) / 2.0,
    };
    let cost = |usage, profile| of_turn(&turn(usage), profile, &ModelShape::default(), 64).unwrap();
    assert!(cost(PREFILL_HEAVY, &H800) < cost(PREFILL_HEAVY, &H20));
    assert!(cost(DECODE_HEAVY, &H20) < cost(DECODE_HEAVY, &H800));
    let small = ClassProfile { hbm_gib: 10.0, ..H20 };
    let fits = |gpus| {
        let profile = ClassProfile { gpus, ..small };
        of_turn(&turn(DECODE_HEAVY), &profile, &ModelShape::default(), 64).is_some()
    };
    assert!(!fits(1) && fits(2), "the weights must fit");
}

#[test]
fn affinity_is_found_out_from_what_the_tasks_do() {
    let mut world = World::new(auto(32));
    world.join(0, spec(0, 64), false);
    world.join(1, spec(1, 64), false);
    generate(&mut world, 0, PREFILL_HEAVY, 31);
    assert_eq!(preferred(&world, 0), None, "too few to tell");
    generate(&mut world, 0, PREFILL_HEAVY, 1);
    generate(&mut world, 1, DECODE_HEAVY, 32);
    assert_eq!(preferred(&world, 0).as_deref(), Some("h800"));
    assert_eq!(preferred(&world, 1).as_deref(), Some("h20"));
    let (swe, math) = (world.arrive(&ask(0)).unwrap(), world.arrive(&ask(1)).unwrap());
    assert_eq!((world.on(swe), world.on(math)), (Some(worker(0)), Some(worker(1))));
    // Its profile shifts in the middle of the run.
    generate(&mut world, 0, DECODE_HEAVY, 640);
    assert_eq!(preferred(&world, 0).as_deref(), Some("h20"));
}

#[test]
fn a_small_advantage_changes_nothing() {
    let shape = ModelShape::default();
    // The output at which both classes cost the same, by bisection.
    let turn = |output: f64| Turn { prefill: 4000.0, decode: output, context: 8000.0 };
    let advantage = |output| {
        let of = |class| of_turn(&turn(output), class, &shape, 64).unwrap();
        of(&H800) / of(&H20)
    };
    let (mut low, mut high) = (1.0, 8000.0);
    for _ in 0..60 {
        let middle = f64::midpoint(low, high);
        if advantage(middle) < 1.0 { low = middle } else { high = middle }
    }
    let usage = |output: f64| Usage {
        prompt_tokens: (8000.0 - output / 2.0) as u32,
        cached_tokens: (4000.0 - output / 2.0) as u32,
        output_tokens: output as u32,
    };
    let mut world = World::new(auto(32));
    world.join(0, spec(0, 64), false);
    world.join(1, spec(1, 64), false);
    generate(&mut world, 0, usage(low * 0.9), 64);
    assert_eq!(preferred(&world, 0).as_deref(), Some("h800"));
    generate(&mut world, 0, usage(low * 1.05), 1024);
    assert!(advantage(low * 1.05) > 1.0);
    assert_eq!(preferred(&world, 0).as_deref(), Some("h800"), "within the hysteresis");
    generate(&mut world, 0, usage(low * 2.0), 1024);
    assert_eq!(preferred(&world, 0).as_deref(), Some("h20"));
}
