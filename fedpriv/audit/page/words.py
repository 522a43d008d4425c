"""Texts of every report: how to read the figures, their limits, and a glossary."""

RECOVERED = (
    "An image counts as recovered if the mean squared error between it and its reconstruction, over pixels in [0, 1] and after "
    "clipping, is below {limit:g}. The baselines beside each attack say what guesses reach on these very images: an attack that "
    "does no better than a guess has found nothing."
)
READ = (
    "A token of a text counts as found if an attack names it among those of the message; the special tokens that every text "
    "has do not count. ROUGE-L is the share of a sentence that was found in the right order. The random words beside each attack "
    "have the true lengths and the frequencies of public texts: an attack that does no better has found nothing."
)
SNR = (
    "The signal-to-noise ratio compares a layer's change in training with the noise that was added to it, as a mean over a "
    "round's participants: at 0 dB there is as much noise as change, every 10 dB less is ten times as much noise. It is about "
    "one message; an attacker that averages over messages, parameters or clients sees more, and no ratio is a guarantee."
)
READING = (
    "The attacks read the sealed messages of these runs, byte for byte as they crossed the wire, and what the threat model adds.",
    "A failure is a statement about an attack and its budget, not about the data: another attacker, more steps, more messages or "
    "better prior knowledge may find what these did not.",
    "Only messages that the run kept were attacked, and not always all of them; shares are of the samples behind them, not of "
    "all samples of all clients.",
    "Intervals are 95 % Wilson intervals over samples. They cover the draw of the samples, not that of the seed or of the run. "
    "Where the best of several membership attacks is named, its interval holds for all of them at once (Bonferroni).",
    "In the easiest case, samples are added until the result is decided; the interval is for the number that was tried.",
    "An attacker counts as evidence only if it recovered images in a control: without a defence, at this very budget, with as "
    "many images behind one message. An attacker that fails a control is not run; without one, finding nothing is no evidence.",
    "The easiest case (clients with a single sample, simulated by the audit with the run's own training and defences) shows what "
    "the same attackers reach under the best conditions; these messages did not cross the wire.",
)
GLOSSARY = {
    "client, server, round": "Clients hold data and train; the server sends them a model and merges what they send back; "
    "one such exchange is a round.",
    "message": "What one client sent in one round, exactly as it crossed the wire.",
    "defence": "What a client does to its message before it sends it: leaving layers out (a mask), clipping, adding noise.",
    "attack, attacker": "A procedure that infers images or labels from a message and the knowledge of the threat model.",
    "threat model": "What the attacker is assumed to know and to do; here it follows the protocol and looks at what it receives.",
    "oracle": "An attacker that is given something no attacker has in practice, to bound what others could reach.",
    "baseline": "A guess made without the message, such as a grey picture or the nearest picture of a public set.",
    "positive control": "A case in which the attack must succeed; it shows that the attack works.",
    "negative control": "A case in which there is nothing to find; it shows that success is not counted where there is none.",
    "MSE": "Mean squared error: the mean over pixels of the squared difference of two images; 0 is identical.",
    "PSNR": "Peak signal-to-noise ratio in decibels: the MSE on a logarithmic scale; 20 dB is an MSE of 0.01, more is closer.",
    "SSIM": "Structural similarity: compares local brightness, contrast and structure; 1 is identical, about 0 is unrelated.",
    "token": "A word or a part of one, as the text encoder's public table has them.",
    "ROUGE-L": "How much of two sentences is the same in the same order, from 0 to 1: their longest common subsequence.",
    "Wilson interval": "A range for the true share, given that so many of so few cases succeeded; where 0 of 72 did, "
    "up to 5 % remains compatible with it.",
    "membership inference": "Telling whether a given sample was among those a client trained on.",
    "row distance": "How near the nearest row of a linear layer's weight gradient, divided by its bias gradient, comes to what "
    "the layer would be fed for a given sample; rows are means of what it was fed in training.",
    "ROC": "Receiver operating characteristic: the share of members found against the share of non-members falsely accused, over "
    "all thresholds.",
    "AUC": "Area under the ROC: the chance that a member looks more like a member than a non-member does; 0.5 is guessing.",
    "TPR at FPR": "True-positive rate at a false-positive rate: the share of members that is found while at most so many "
    "non-members are falsely accused.",
    "F1": "The harmonic mean of precision and recall over the classes; it must be read beside what constant answers reach.",
    "class centre": "The mean of a client's embeddings of one class, which some methods send.",
    "epsilon, delta": "The parameters of differential privacy: how much the presence of one person (or sample) can change what "
    "is seen, except with a probability of about delta; smaller is stronger, and 0 would be no influence at all.",
    "accountant": "The calculation that adds up epsilon over a training run: an upper bound that holds against any attacker, "
    "under the assumptions it names.",
    "empirical lower bound": "The epsilon below which an attack's success rules out every value, with 95 % confidence; a small "
    "one may mean only that the attack is weak.",
}
