use super::*;
use crate::golden;

fn model() -> Model {
    serde_yaml::from_str("{path: Qwen/Qwen3-8B, servedName: policy, maxTokens: 4096}").unwrap()
}

fn engine(kind: &str) -> Engine {
    let text = format!(
        "{{type: {kind}, image: i, port: 30000, args: [--seed, '1', --extra=$(ROLLWRIGHT_DEGREE)]}}"
    );
    serde_yaml::from_str(&text).unwrap()
}

fn line(engine: &Engine, role: Role, nodes: usize, leads: bool) -> String {
    let place = Place { degree: 4, role, nodes, leads };
    let line = command_line(&model(), engine, place);
    let env = line.env.iter().map(|(name, value)| format!("{name}={value}"));
    let words: Vec<String> = env.chain(line.command).chain(line.args).collect();
    words.join(" ")
}

#[test]
fn command_lines_are_those_of_the_engines() {
    let quantized = |kind| Engine { quantization: Some("fp8".into()), ..engine(kind) };
    let lines = [
        line(&engine("vLLM"), Role::Mixed, 1, true),
        line(&quantized("vLLM"), Role::Prefill, 1, true),
        line(&engine("vLLM"), Role::Decode, 2, true),
        line(&engine("vLLM"), Role::Mixed, 2, false),
        line(&engine("SGLang"), Role::Mixed, 1, true),
        line(&quantized("SGLang"), Role::Prefill, 1, true),
        line(&engine("SGLang"), Role::Decode, 2, false),
        line(&engine("OpenAI"), Role::Mixed, 1, true),
    ];
    golden::check("job", "command-lines", &lines);
}

#[test]
fn the_users_arguments_come_last() {
    for kind in ["vLLM", "SGLang", "OpenAI"] {
        let line = line(&engine(kind), Role::Mixed, 1, true);
        assert!(line.ends_with("--seed 1 --extra=$(ROLLWRIGHT_DEGREE)"), "{line}");
    }
}
