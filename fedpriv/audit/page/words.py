"""The texts of every report: how to read the figures, their limits, and a glossary."""

RECOVERED = (
    "An image counts as recovered if the mean squared error between it and its reconstruction, over pixels in [0, 1] and after "
    "clipping, is below {limit:g}. The baselines beside each attack show what guesses reach on the same images: an attack that "
    "does no better than a guess has found nothing. Where images are so alike that copies of public images pass the threshold, "
    "too, a stricter threshold decides whether the attack came closer."
)
READ = (
    "A token of a text counts as found if an attack names it among those of the message; the special tokens that every text "
    "has do not count. ROUGE-L is the share of a sentence that was found in the right order. The random words beside each attack "
    "have the true lengths and the frequencies of public texts: an attack that does no better has found nothing."
)
READ_ROWS = (
    "A cell of a row counts as recovered if its category is the true one, or its number lies within 0.319 standard deviations of "
    "the true one (a quarter of normally distributed numbers lie so near to their mean); a row counts if all its cells do, and "
    "hardly by chance (at most 1 %): made-up rows hardly match so many of the cells, or so closely. "
    "The rows of a message are matched to the true ones first. The guesses beside each attack are the most frequent value of "
    "each column, and other rows, matched in the same way: an attack that does no better has found nothing."
)
RULES_OF_ROWS = "Of rows of a table, cells stand in the place of words, and inferred attributes in that of identified members."
SNR = (
    "The signal-to-noise ratio compares a layer's change in training with the noise that was added to it, as a mean over a "
    "round's participants. At 0 dB both are equally strong; each 10 dB less means ten times as much noise power. The ratio is "
    "that of one message; an attacker that averages over messages, parameters or clients sees more. No ratio is a guarantee."
)
CENTERS = (
    "The attack looks for the most likely image of the class whose embedding is the centre; the guess is the mean of public "
    "images of the class. Images count as recovered only if more of them pass the threshold than of the nearest public images "
    "and of that mean. A failure is no evidence: there is no control. Distances are from an embedding to the centre, as a "
    "share of the centre's squared length; where that of the true images is not near 0, the attacker does not know the net that "
    "made the centres, such as a projector that stays with the client."
)
LABEL_RULES = (
    "Each rule was tried on every message; the attacker's own samples are public ones, of no client. The table above has the "
    "rule that found most sets over all messages, and the counts of the rule that found most labels. Neither was chosen for a "
    "single message, and the intervals hold for all rules that apply at once (Bonferroni)."
)
LABELS_TOGETHER = (
    "From all kept messages of a client together: a class counts as present if at least half of the messages show it, and counts "
    "are means."
)
RULES = "One of these, the first whose rule holds: {words}. It is never stronger than the attacks that were mounted."
TRADEOFF = (
    "Each disc is a run, numbered as above: to the right is more accurate, lower is less recovered by the best attacker from "
    "real messages. The area is the bytes uploaded, the vertical line the 95 % interval of what was recovered. A dotted line "
    "leads from the undefended run of the same method."
)
ROC_OF_ANSWER = "Members found against others falsely accused, over all thresholds. Both axes are logarithmic."
ROC = "Both axes are logarithmic, to show low false-positive rates."
EACH_ALONE = "Each interval is for that attack alone. The answer's is wider, as it holds for all of them at once (Bonferroni)."
BEFORE = (
    "Before round 1, each client tells the server by what its samples are scaled and coded. The server learns this without an "
    "attack, and so does anyone who reads the messages. Means, deviations and levels of all clients together then go to every "
    "client. As cells that are told count those of columns with one value in all rows of a client (but not of all clients), and "
    "those of up to three rows or numbers that follow from the sums. Not counted is what exact sums tell of more: four numbers "
    "with decimals follow in three of four cases, and so do numbers of which all but a few are zero."
)
MEAN_COLOUR = "Mean colour of a client's images, from running statistics, in [0, 1]:"
EXPOSED = (
    "The defences of this run alter the model and leave {what} unaltered, which may reveal what the defences hide in the model."
)
NO_GUARANTEE = {
    "run": "none: no differential privacy",
    "update": "not known: one message does not say how it was made",
    "record": "not known: no client states an epsilon",
}
"""By the source of the messages, the guarantee where no epsilon is known."""
FINISHED_MODEL = "What others can learn from the finished model was not measured."
CONTRADICTION = (
    "The lower bound exceeds the upper one. Either the accounting or the measurement is wrong, or they are not comparable; do "
    "not rely on either until this is explained."
)
NO_IMAGES = "No attack was mounted on messages of this run{because} So it is not known what an attack would recover."
FEW_IMAGES = "Some attacks could not be mounted{because}"
NO_TEXTS = "No attack on texts was mounted on messages of this run{because}"
FEW_TEXTS = "Clients with a single text were not simulated{because}"
NO_ROWS = "No attack on rows was mounted on messages of this run{because} So it is not known what an attack would recover."
FEW_ROWS = "Some attacks could not be mounted{because}"
ATTRIBUTES = (
    "Of rows that a client trained on, one column is hidden at a time. The attacker completes each row with each value (of "
    "numbers, the medians of ranges) and compares the completed rows’ gradients with the message. Without a message, the best of "
    "three guesses: logistic regression on all other rows, or on the client’s own, from the other columns and the label; or the "
    "client’s most frequent value. Only the difference is due to the message."
)
KNOWN = "What each attacker was assumed to know"
LOSSES = "Every attack has its own loss, so curves of different attacks are not comparable."
CENTER_PICTURE = (
    "{whose}: the mean image of each class that the client holds, what was drawn from its class centres, and a guess."
)
MEASURES = {
    "images": "images recovered",
    "texts": "texts recovered word by word",
    "rows": "rows right in every cell",
    "cells": "cells of rows that are right",
    "label sets": "sets of classes found exactly",
    "membership": "membership AUC (0.5: guessing)",
}
SUMS = (
    "The server saw the sum of each round’s uploads. For comparison, the same attacks were run on the single uploads, which it "
    "would have seen without secure aggregation; this simulation kept them."
)
CONTROLS = "Before anything was reported, the attacks were run where they must succeed, and where there is nothing to find."
READING = (
    "The attacks get the messages of these runs, byte for byte as they were sent, and the knowledge of the threat model.",
    "A failure is a statement about an attack and its budget, not about the data: another attack, more steps, more messages or "
    "better prior knowledge may succeed.",
    "Only messages that the run kept were attacked, and not always all of them; shares are of the samples behind them, not of "
    "all samples of all clients.",
    "Intervals are 95 % Wilson intervals over samples. They cover the draw of the samples, not that of the seed or of the run. "
    "Where the best of several membership attacks, or rules for labels, is named, its interval holds for all of them at once "
    "(Bonferroni).",
    "In the easiest case, samples are added until the result is decided; the interval is for the number that was tried.",
    "An attack counts as evidence only if it recovered samples in a control: without a defence, at the same budget, with as "
    "many samples per message. An attack that fails a control is not run; without a control, its failure is no evidence. One "
    "that recovers nothing is then tried on other samples, on undefended messages of the same net; if it recovers "
    "less than half of these, its failure is no evidence either.",
    "The easiest case (clients with a single sample, simulated by the audit with the run's own training and defences) shows what "
    "the same attacks reach under the best conditions; the run did not send these messages.",
)
ATTACKS_OF_AUDITS = {
    "loss threshold": "Membership inference by the confidence of a sample's label under the uploaded model: higher for members "
    "(Yeom et al. 2018).",
    "LiRA, LiRA offline": "Membership inference that compares a sample's score with its scores under shadow models that were "
    "trained with it and without it (offline: only without it). Where no other score is named, it is the confidence of the label "
    "(Carlini et al. 2022).",
    "FedMIA": "Membership inference that compares a sample's score with its scores under the other clients' messages, over "
    "several rounds (Zhu et al. 2025).",
    "linear probe, head trained by the server": "How the server completes an upload without the last layers: by a logistic "
    "regression on the encoder's features of its own samples, or by layers that it trained itself.",
    "row distance": "The distance between a linear layer's input for a given sample and the nearest row of the layer's weight "
    "gradient, divided by its bias gradient; such rows are means of inputs in training.",
    "gradient regression": "How much each given sample's gradient, at the weights that the server sent, contributes to a "
    "message, solved for all given samples at once; over rounds, the scores of all rounds are added.",
    "running statistics": "BatchNorm's means and variances. As an attack: how much each given sample contributes to those of a "
    "message, solved for all given samples at once.",
    "class centre": "The mean of a client's embeddings of one class (class prototype), which some methods send. As an "
    "attack: how near a given sample's embedding is to its class's centre.",
    "attribute regression": "Which value of a hidden column is behind a message, by a gradient regression on the row completed "
    "with each value.",
}
"""The attacks that audits alone mount, by the names that reports print, and what else is in these names."""
GLOSSARY = {
    "client, server, round": "Clients hold data and train; the server sends them a model and merges what they send back; "
    "one such exchange is a round.",
    "message": "What one client sent in one round, byte for byte.",
    "defence": "What a client does to its message before it sends it: leaving layers out (a mask), clipping, adding noise.",
    "attack, attacker": "A procedure that infers samples or labels from a message and the knowledge of the threat model.",
    "threat model": "What the attacker is assumed to know and to do; here it follows the protocol and looks at what it receives.",
    "oracle": "An attacker that is given knowledge no attacker has in practice, as a bound on what others could reach.",
    "baseline": "A guess made without the message, such as a grey picture, or the most frequent value of a column.",
    "positive control": "A case in which the attack must succeed; it shows that the attack works.",
    "negative control": "A case in which there is nothing to find; it shows that the attack does not succeed by accident.",
    "MSE": "Mean squared error: the mean over pixels of the squared difference of two images; 0 is identical.",
    "PSNR": "Peak signal-to-noise ratio in decibels: the MSE on a logarithmic scale; 20 dB is an MSE of 0.01, more is closer.",
    "SSIM": "Structural similarity: compares local brightness, contrast and structure; 1 is identical, about 0 is unrelated.",
    "feature distance": "Of a pretrained EfficientNet-Lite0: one minus the cosine of its features of two images, averaged over "
    "five resolutions; 0 is identical, about 0.4 to 0.7 is another image. It has the form of LPIPS, but no learned weights.",
    "token": "A word or a part of a word, from the text encoder's public vocabulary.",
    "ROUGE-L": "How much of two sentences is the same in the same order, from 0 to 1: their longest common subsequence.",
    "Wilson interval": "A confidence interval for a success rate that is valid for few cases; if 0 of 72 succeed, it reaches "
    "up to 5 %.",
    "membership inference": "Inferring whether a client trained on a given sample.",
    **ATTACKS_OF_AUDITS,
    "ROC": "Receiver operating characteristic: the share of members found against the share of non-members falsely accused, over "
    "all thresholds.",
    "AUC": "Area under the ROC: the probability that a member scores higher than a non-member; 0.5 is guessing.",
    "TPR at FPR": "True-positive rate at a false-positive rate: the share of members that is found while at most that share of "
    "the non-members is falsely accused.",
    "F1": "The harmonic mean of precision and recall over the classes; compare it with that of constant answers.",
    "shadow client, shadow model": "One that the attacker simulates on data it knows, to learn what messages reveal.",
    "epsilon, delta": "The parameters of differential privacy: how much the data of one person (or sample) can change what an "
    "observer sees, except with a probability of about delta; smaller is stronger, and 0 is no influence at all.",
    "accountant": "The calculation of epsilon over a training run: an upper bound that holds against any attacker, under the "
    "stated assumptions.",
    "empirical lower bound": "The smallest epsilon that is compatible with an attack's success, at 95 % confidence; a small "
    "one may only mean that the attack is weak.",
}
