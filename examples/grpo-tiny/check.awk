# The task's checker, run in a sandbox: reads the question and the answer, a line each,
# and prints the reward: the part of the reversed question that the answer has in its place.
NR == 1 { question = $0 }
NR == 2 { answer = $0 }
END {
  asked = length(question); said = length(answer)
  for (i = 1; i <= asked; i++)
    right += substr(answer, i, 1) == substr(question, asked + 1 - i, 1)
  printf "%.6f\n", right / (said > asked ? said : asked)
}
