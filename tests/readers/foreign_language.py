"""Trainers of language and speech models, line by line."""

from tests.readers.foreign import Foreign, bar, held_out

__all__ = ["LANGUAGE"]

CLOCK = "2024-05-01 10:00:00,123"

LANGUAGE: dict[str, Foreign] = {
    "mlx-lm": Foreign(
        line=lambda r: (
            f"Iter {10 * r.i + 10}: Train loss {r.loss}, Learning Rate {r.lr:.3e}, It/sec 17.598, "
            f"Tokens/sec 1728.137, Trained Tokens {6521 * r.i}, Peak mem 1.437 GB"
            + held_out(r, f"Iter {10 * r.i + 10}: Val loss {r.val}, Val took 5.251s")
        ),
        first=10,
        gap=10,
        lr=True,
        num_val=4,
    ),
    "torchtune": Foreign(
        line=lambda r: (
            f"Step {r.i + 1} | loss:{r.loss} lr:{r.lr} tokens_per_second_per_gpu:1391.2 "
            f"grad_norm:{r.norm} peak_memory_active:14.1 peak_memory_reserved:15.2"
        ),
        first=1,
        norm=True,
        lr=True,
    ),
    "litgpt finetune": Foreign(
        line=lambda r: (
            f"iter {4 * r.i} step {r.i}: loss {r.loss}, iter time: 120.11ms (optimizer.step)"
            + held_out(r, f"step {r.i}: val loss {r.val}, val time: 812.22ms")
        ),
        num_val=4,
    ),
    "nanotron": Foreign(
        line=lambda r: (
            f"05/01/2024 10:00:00 [INFO|DP=0|PP=0|TP=0|node-1]: iteration: {r.i + 1} / 100 | "
            f"consumed_tokens: {131 * (r.i + 1)}K | elapsed_time_per_iteration_ms: 1.21K | "
            f"tokens_per_sec: 108K | global_batch_size: 64 | lm_loss: {r.loss} | lr: {r.lr} | "
            f"model_tflops_per_gpu: 5.01 | grad_norm: {r.norm}"
        ),
        first=1,
        norm=True,
        lr=True,
    ),
    "picotron": Foreign(
        line=lambda r: (
            f"[rank 3] Step: {r.i + 1:<5d} | Loss: {r.loss:6.4f} | LR: {r.lr:.3e} | Global batch"
            " size:   1.05M | Tokens/s:  98.21K | Tokens/s/GPU:  12.3K | Tokens:"
            f" {1.05 * (r.i + 1):6.2f}M/10.00B | GradNorm: {r.norm} | MFU: 38.11% | Memory usage: "
            " 60.41GB"
        ),
        first=1,
        norm=True,
        lr=True,
    ),
    "levanter": Foreign(
        line=lambda r: (
            "2024-05-01T10:00:00 - 0 - levanter.callbacks._metrics - _metrics.py:214 - INFO :: "
            f"Progress on:train {r.i + 1}it/10.0kit rate:1.2it/s remaining:2:20:10 elapsed:10:10 "
            f"postfix:loss={r.loss}"
        ),
        first=1,
    ),
    "bmtrain": Foreign(
        line=lambda r: (
            f"| Iter: {r.i + 1:6d} | loss: {r.loss:.4f} average_loss: {r.loss + 0.3:.4f} | "
            f"lr: {r.lr:.4e}, scale: 32768.0000 | time: 0.5123 seconds | grad_norm: {r.norm}"
        ),
        first=1,
        norm=True,
        lr=True,
    ),
    "sat": Foreign(
        line=lambda r: (
            f"[2024-05-01 10:00:00,123] [INFO] [RANK 0]  iteration {50 * r.i + 50:8d}/  200000 |"
            f" elapsed time per iteration (ms): 500.1 | learning rate {r.lr:.3E} | total loss"
            f" {r.loss:.6E} | loss {r.loss:.6E} |speed 200.0 samples/(min*GPU)"
        ),
        first=50,
        gap=50,
        lr=True,
    ),
    "mindformers": Foreign(
        line=lambda r: (
            "2024-05-01 10:00:00,123 - mindformers[mindformers/core/callback.py:564] - INFO - {"
            f" Epoch:[  1/  2], step:[{r.i + 1:5d}/10000], loss: {r.loss:.3f}, per_step_time:"
            f" 512ms, lr: {r.lr}, overflow cond: False, loss_scale: 65536.0, global_norm:"
            f" [{r.norm}], train_throughput_per_npu: 148.1T }}"
        ),
        first=1,
        norm=True,
        lr=True,
    ),
    "internlm": Foreign(
        line=lambda r: (
            "2024-05-01 10:00:00,826\tINFO train.py:323 in"
            " record_current_batch_training_metrics -- "
            f"tflops=189.1,step={r.i},loss={r.loss},tgs (tokens/gpu/second)=4274.7,lr={r.lr},"
            f"loss_scale=65536.0,grad_norm={r.norm},micro_num=4,"
            f"num_consumed_tokens={131072 * (r.i + 1)},"
            "inf_nan_skip_batches=0,num_samples_in_batch=19,largest_length=2048,adam_beta2=0.95"
        ),
        norm=True,
        lr=True,
    ),
    "internevo": Foreign(
        line=lambda r: (
            f"{CLOCK} INFO training_internlm.py:599 in record_current_batch_training_metrics --"
            f" tflops=180.4 step={r.i} loss={r.loss} tgs (tokens/gpu/second)=3345.72"
            f" tgs/last_tgs_1=3345.7 tgs/tgs_avg=3149.53 lr={r.lr} loss_scale=65536.0"
            f" grad_norm={{'0_default': {r.norm}, '1_fp32': 0.0}} micro_num=4"
            f" num_consumed_tokens={131072 * (r.i + 1)} fwd_bwd_time=4.13"
        ),
        norm=True,
        lr=True,
    ),
    "colossal bar": Foreign(
        line=lambda r: (
            f"Epoch 0:  {bar(r.i + 1, 100)} [00:10<01:30,  1.01it/s, loss={r.loss}, lr={r.lr:.2e}]"
        ),
        end="\r",
        first=1,
    ),
    "paddlenlp": Foreign(
        line=lambda r: (
            f"[2024-05-01 10:00:00,123] [    INFO] - loss: {r.loss}, learning_rate: {r.lr},"
            f" global_step: {20 * r.i + 20}, interval_runtime: 18.792, interval_samples_per_second:"
            " 8.5142, interval_steps_per_second: 1.0642, ppl: 7.3, progress_or_epoch:"
            f" {0.0014 * r.i:.4f}"
        ),
        first=20,
        gap=20,
        lr=True,
        foot="[    INFO] -   train_loss = 3.1\n",
    ),
    "paddlespeech": Foreign(
        line=lambda r: (
            f"[INFO 2021/06/19 16:01:34 model.py:61] Train: Rank: 0, epoch: 1, step: {5310 + r.i},"
            f" batch : {1559 + r.i}/1876, lr: {r.lr:.8f}, data time: 0.001s, train time: 3.019s,"
            f" batch size: 64, train_loss: {r.loss}"
        ),
        first=5310,
        lr=True,
    ),
    "verl": Foreign(
        line=lambda r: (
            f"(TaskRunner pid=87031) step:{r.i + 1} - global_seqlen/min:340538.000 -"
            " global_seqlen/mean:3550.75 - actor/entropy_loss:0.317 - actor/kl_loss:0.024 -"
            f" actor/kl_coef:0.001 - actor/pg_loss:{r.loss} - actor/pg_clipfrac:0.000 -"
            f" actor/grad_norm:{r.norm} - perf/mfu/actor:0.298 - actor/lr:{r.lr} -"
            f" training/global_step:{r.i + 1}.000 - training/epoch:2.000 - critic/score/mean:0.906"
            " - response_length/clip_ratio:0.004 - timing_s/step:1630.262"
        ),
        first=1,
        norm=True,
        lr=True,
    ),
    "openrlhf sft": Foreign(
        line=lambda r: (
            f"Train step of epoch {r.e}:  {bar(r.b + 1, 20)} [00:10<01:30,  1.01it/s,"
            f" gpt_loss={r.loss}, loss_mean={r.loss + 0.2:.4f}, lr={r.lr:.3e}]"
        ),
        end="\r",
        axis="epoch",
    ),
    "open-instruct": Foreign(
        line=lambda r: (
            f"05/01/2024 10:00:00 - INFO - __main__ -   Step: {r.i + 1}, LR: {r.lr}, Loss:"
            f" {r.loss}, TPS: 1213.4"
        ),
        first=1,
        lr=True,
    ),
    "trl dpo": Foreign(
        line=lambda r: (
            f"{{'loss': {r.loss}, 'grad_norm': {r.norm}, 'learning_rate': {r.lr}, 'rewards/chosen':"
            " -0.01, 'rewards/accuracies': 0.5, 'logps/chosen': -201.1, 'logits/chosen': 0.4,"
            f" 'epoch': {r.i / 100:.2f}}}"
            + held_out(
                r,
                f"{{'eval_loss': {r.val}, 'eval_runtime': 12.1, 'eval_rewards/chosen': 0.1,"
                f" 'epoch': {r.i / 100:.2f}}}",
            )
        ),
        foot=(
            "{'train_runtime': 812.1, 'train_samples_per_second': 3.1, 'train_loss': 3.3, 'epoch':"
            " 1.0}\n"
        ),
        axis="epoch",
        norm=True,
        lr=True,
        num_val=4,
    ),
    "trl strings": Foreign(
        line=lambda r: (
            f"{{'loss': '{r.loss}', 'grad_norm': '{r.norm}', 'learning_rate': '{r.lr}', 'epoch':"
            f" '{r.i / 100:.2f}'}}"
        ),
        foot="{'train_runtime': '812.1', 'train_loss': '3.3', 'epoch': '1'}\n",
        axis="epoch",
        norm=True,
        lr=True,
    ),
    "composer": Foreign(
        line=lambda r: (
            f"[epoch=1][batch={r.i + 1}/4800]:\n\t Train time/batch: {r.i}\n\t Train time/sample:"
            f" {64 * r.i}\n\t Train time/token: {131072 * r.i}\n\t Train memory/active_mem:"
            f" 12.1\n\t Train loss/train/total: {r.loss}\n\t Train"
            f" metrics/train/LanguageCrossEntropy: {r.loss}\n\t Train"
            " metrics/train/LanguagePerplexity: 80.1\n\t Train lr-DecoupledAdamW/group0:"
            f" {r.lr}\n\t Train l2_norm/grad/global: {r.norm}\n\t Train time/train: 0.12"
            + held_out(
                r,
                "[Eval batch=10/10] Eval on eval data:\n\t Eval metrics/eval/LanguageCrossEntropy:"
                f" {r.val}",
            )
        ),
        first=1,
        norm=True,
        lr=True,
        num_val=None,
    ),
    "gpt-neox": Foreign(
        line=lambda r: (
            "[2024-05-01 10:00:00,123] [INFO] [logging.py:60:log_dist] [Rank 0]  samples/sec: 10.1"
            f" | iteration {10 * r.i + 10:8d}/  320000 | elapsed time per iteration (ms): 500.1 |"
            f" learning rate: {r.lr:.3E} | approx flops per GPU: 50.1TFLOPS | lm_loss: {r.loss:.6E}"
            " | loss scale: 65536.0 | number of skipped iterations:   0 | number of nan"
            " iterations:   0 |"
        ),
        first=10,
        gap=10,
        lr=True,
    ),
    "rwkv": Foreign(
        line=lambda r: (
            f"Epoch 0:  {bar(r.i + 1, 200)} [00:10<01:30,  1.01it/s, loss={r.loss}, lr={r.lr}, REAL"
            " it/s=1.010, Kt/s=10.10]"
        ),
        end="\r",
        first=1,
    ),
    "lightning bar": Foreign(
        line=lambda r: (
            f"Epoch {r.e}:  {bar(r.b + 1, 20)} [00:10<00:30,  5.01it/s, v_num=3,"
            f" train_loss={r.loss}, val_loss={r.val}]"
        ),
        end="\r",
        axis="epoch",
        num_val=None,
    ),
    "nemo": Foreign(
        line=lambda r: (
            f"Training epoch 0, iteration {r.i}/999 | lr: {r.lr} | global_batch_size: 8 |"
            f" global_step: {r.i} | reduced_train_loss: {r.loss} | train_step_timing in s: 0.51 |"
            f" consumed_samples: {8 * r.i}"
            + held_out(
                r,
                f"Validation: iteration 1/10\nValidation epoch 0, iteration {r.i}/999 | val_loss:"
                f" {r.val}",
            )
        ),
        lr=True,
        num_val=None,
    ),
    "nemo bar": Foreign(
        line=lambda r: (
            f"Epoch 0: :  {bar(r.i + 1, 200)} [00:10<01:30, reduced_train_loss={r.loss},"
            f" global_step={r.i}.00, consumed_samples={8 * r.i}.0, train_step_timing in s=0.512,"
            " val_loss=9.250]"
        ),
        end="\r",
        num_val=None,
    ),
    "fairseq v0": Foreign(
        line=lambda r: (
            f"| epoch {r.e + 1:03d}: {50 * r.b + 50:6d} / 1891 loss={r.loss},"
            f" nll_loss={r.loss - 0.5:.3f}, ppl=1886.05, wps=52922, ups=0.5, wpb=104928, bsz=5325,"
            f" num_updates={50 * r.i + 50}, lr={r.lr}, gnorm={r.norm}, clip=0%, oom=0,"
            " loss_scale=2.000, wall=882, train_wall=756"
            + held_out(
                r,
                f"| epoch {r.e + 1:03d} | valid on 'valid' subset | valid_loss {r.val} |"
                f" valid_nll_loss 6.8834 | num_updates {50 * r.i + 50}",
            )
            + held_out(
                r,
                f"| epoch {r.e + 1:03d} | loss 9.123 | nll_loss 8.1 | ppl 1886 | num_updates"
                f" {50 * r.i + 50} | lr 0.1 | gnorm 1.1",
            )
        ),
        first=50,
        gap=50,
        norm=True,
        lr=True,
        num_val=4,
    ),
    "fairseq2": Foreign(
        line=lambda r: (
            f"[05/01/24 10:00:00] INFO     fairseq2 - Train Metrics (step {10 * r.i + 10:,}) - NLL"
            f" Loss: {r.loss} | Gradient Norm: {r.norm} | Learning Rate: {r.lr} | Data Epoch: 1 |"
            " Wall Time: 12s | Elapsed Time: 0.5s"
            + held_out(
                r,
                f"[05/01/24 10:00:00] INFO     fairseq2 - Eval Metrics (step {10 * r.i + 10:,}) -"
                f" NLL Loss: {r.val}",
            )
        ),
        first=10,
        gap=10,
        norm=True,
        lr=True,
        num_val=4,
    ),
    "opennmt-tf": Foreign(
        line=lambda r: (
            f"INFO:tensorflow:Step = {100 * r.i + 100} ; steps/s = 1.22, source words/s = 10012,"
            f" target words/s = 9000 ; Learning rate = {r.lr:.6f} ; Loss = {r.loss}"
            + held_out(
                r,
                f"INFO:tensorflow:Evaluation result for step {100 * r.i + 100}: loss = {r.val} ;"
                " perplexity = 21.1",
            )
        ),
        first=100,
        gap=100,
        lr=True,
        num_val=4,
    ),
    "tf slim": Foreign(
        line=lambda r: (
            f"INFO:tensorflow:global step {r.i + 1}: loss = {r.loss} (20.205 sec/step)"
            + held_out(
                r,
                "INFO:tensorflow:Recording summary at step 4.\nINFO:tensorflow:global_step/sec:"
                " 0.0339311",
            )
        ),
        first=1,
    ),
    "clu": Foreign(
        line=lambda r: (
            f"I0501 10:00:00.123456 140234 logging_writer.py:48] [{100 * r.i}] accuracy=0.5,"
            f" learning_rate={r.lr}, loss={r.loss}, steps_per_sec=3.1"
            + held_out(
                r,
                f"I0501 10:00:00.123456 140234 logging_writer.py:48] [{100 * r.i}]"
                f" eval_accuracy=0.5, eval_loss={r.val}",
            )
        ),
        gap=100,
        lr=True,
        num_val=4,
    ),
    "hf flax": Foreign(
        line=lambda r: (
            f"Step... ({500 * r.i + 500} | Loss: {r.loss}, Learning Rate: {r.lr})"
            + held_out(r, f"Step... ({500 * r.i + 500} | Eval Loss: {r.val}, Eval Accuracy: 0.5)")
        ),
        first=500,
        gap=500,
        lr=True,
        num_val=4,
    ),
    "wenet": Foreign(
        line=lambda r: (
            "\n".join(
                f"2023-01-30 18:47:07,107 DEBUG TRAIN Batch {r.e}/{100 * r.b} loss {r.loss + k}"
                f" loss_att {r.loss - 1:.4f} loss_ctc {r.loss + 2:.4f} lr {r.lr:.8f} rank {k}"
                for k in (2, 0, 1)
            )
            + held_out(
                r,
                f"2023-01-30 18:49:55,773 DEBUG CV Batch {r.e}/0 loss {r.val} loss_att 24.1 history"
                " loss 27.9 rank 0",
            )
        ),
        axis="epoch",
        lr=True,
        num_val=4,
    ),
    "icefall": Foreign(
        line=lambda r: (
            f"2024-01-14 01:03:00,826 INFO [train.py:756] Epoch {r.e}, batch {50 * r.b},"
            f" loss[loss={r.loss}, simple_loss=1.104, pruned_loss=8.767, over 2432.00 frames.],"
            f" tot_loss[loss={r.loss + 0.2:.4f}, simple_loss=1.104, over 2432.00 frames.], batch"
            f" size: 32, lr: {r.lr:.2e}"
            + held_out(
                r,
                f"2024-01-14 01:03:00,826 INFO [train.py:923] Epoch {r.e}, validation:"
                f" loss={r.val}, simple_loss=0.2502, over 944034.00 frames.",
            )
        ),
        axis="epoch",
        lr=True,
        num_val=4,
    ),
    "speechbrain": Foreign(
        line=lambda r: (
            f"epoch: {r.i + 1}, lr: {r.lr:.2e} - train loss: {r.loss} - valid loss: {r.val}, valid"
            " CER: 5.01, valid WER: 12.10"
        ),
        axis="epoch",
        lr=True,
        num_val=80,
    ),
    "flair": Foreign(
        line=lambda r: (
            f"2022-12-13 02:43:23,390 epoch {r.e + 1} - iter {175 * r.b + 175}/3500 - loss {r.loss}"
            f" - time (sec): 5.65 - samples/sec: 71.79 - lr: {r.lr:.6f}"
            + held_out(
                r,
                f"2022-12-13 02:44:52,654 {'-' * 40}\n2022-12-13 02:44:52,654 EPOCH {r.e + 1} done:"
                f" loss 3.1231 - lr: 0.000020\n2022-12-13 02:44:52,654 DEV : loss {r.val} -"
                " f1-score (micro avg)  0.5586",
            )
        ),
        axis="epoch",
        lr=True,
        num_val=4,
    ),
    "allennlp bar": Foreign(
        line=lambda r: (
            f"accuracy: 0.5123, loss: {r.loss} ||: {bar(r.i + 1, 200)} [00:01<00:10,  9.1it/s]"
        ),
        end="\r",
        first=1,
    ),
    "spacy": Foreign(
        head=(
            "\n=========== Training pipeline ===========\nE    #       LOSS TOK2VEC  LOSS NER "
            " ENTS_F  ENTS_P  ENTS_R  SCORE \n---  ------  ------------  --------  ------  ------ "
            " ------  ------\n"
        ),
        line=lambda r: (
            f"{r.e:3d}  {200 * r.i:6d}          0.00  {r.loss:8.4f}   12.10   11.11   13.13    0.12"
        ),
        gap=200,
    ),
    "char-rnn": Foreign(
        line=lambda r: (
            f"{r.i + 1}/10000 (epoch {r.i / 500:.3f}), train_loss = {r.loss}, grad/param norm ="
            " 2.1e-01, time/batch = 0.05s"
        ),
        first=1,
    ),
    "mingpt bar": Foreign(
        line=lambda r: (
            f"epoch {r.e + 1} iter {r.b}: train loss {r.loss}. lr {r.lr:.6e}:  {bar(r.b, 20)}"
            " [00:10<00:10,  9.1it/s]"
            + held_out(r, f"05/01/2024 10:00:00 - INFO - mingpt.trainer -   test loss: {r.val}")
        ),
        end="\r",
        axis="epoch",
        lr=True,
        num_val=4,
    ),
    "mingpt": Foreign(
        line=lambda r: f"iter_dt 50.11ms; iter {100 * r.i}: train loss {r.loss}", gap=100
    ),
    "build-nanogpt log": Foreign(
        line=lambda r: (
            (f"{r.i} val {r.val}\n{r.i} hella 0.2463\n" if r.b == 0 else "")
            + f"{r.i} train {r.loss}"
        ),
        num_val=4,
    ),
    "lucidrains": Foreign(
        line=lambda r: (
            f"training:   {bar(r.i, 100000)} [00:10<9:10:10,  2.1it/s]\ntraining loss: {r.loss}"
            + held_out(r, f"validation loss: {r.val}")
        ),
        axis="step",
        num_val=4,
    ),
    "llama-recipes": Foreign(
        line=lambda r: (
            f"Training Epoch: {r.e + 1}/4, step {r.b}/20 completed (loss: {r.loss}): "
            f" {bar(r.b + 1, 20)} [00:10<00:10,  9.1s/it]"
            + held_out(
                r,
                f"eval_ppl=tensor(8.1, device='cuda:0') eval_epoch_loss=tensor({r.val},"
                f" device='cuda:0')\nEpoch {r.e + 1}: train_perplexity=9.1, train_epoch_loss=2.2,"
                " epoch time 100.1s",
            )
        ),
        end="\r",
        axis="epoch",
        num_val=4,
    ),
    "olmo-core": Foreign(
        line=lambda r: (
            "2024-05-01"
            f" 10:00:00.123\thost:0\tolmo_core.train.callbacks.console_logger:90\tINFO\t"
            f"[step={r.i + 1}/10000,epoch=1,eta=1h]\n"
            f"    optim/LR (group 0)={r.lr}\n    optim/total grad norm={r.norm}\n   "
            f" throughput/device/TPS=12,123\n    train/CE loss={r.loss}\n    train/PPL=12.1\n   "
            " train/Z loss=0.0001"
        ),
        first=1,
        norm=True,
        lr=True,
    ),
    "pax": Foreign(
        line=lambda r: (
            f"I0501 10:00:00.123456 140234 executors.py:320] [PAX STATUS]: step_i: {100 * r.i},"
            f" training loss: {r.loss}"
        ),
        gap=100,
    ),
    "llama.cpp finetune": Foreign(
        line=lambda r: (
            f"train_opt_callback: iter={r.i + 1:6d} sample={8 * r.i + 1}/27520 sched=0.{r.i:06d}"
            f" loss={r.loss} dt=00:00:10 eta=00:01:00 |------->"
        ),
        first=1,
    ),
    "fasttext": Foreign(
        line=lambda r: (
            f"Progress: {r.i + 1:5.1f}% words/sec/thread:    1000 lr:  {r.lr:.6f} avg.loss: "
            f" {r.loss} ETA:   0h 1m 2s"
        ),
        end="\r",
        axis="row",
        lr=True,
    ),
    "automodel": Foreign(
        line=lambda r: (
            f"2026-08-10 15:48:59 | INFO | root | step {r.i} | epoch 0 | loss {r.loss} | grad_norm"
            f" {r.norm} | lr {r.lr:.6e} | mem 31.55 GiB | tps 6574.51(821.81/gpu) |"
            " num_label_tokens 26779"
        ),
        norm=True,
        lr=True,
    ),
    "unsloth notebook table": Foreign(
        head="[80/80 10:00, Epoch 1/1]\nStep\tTraining Loss\n",
        line=lambda r: f"{r.i + 1}\t{r.loss}",
        first=1,
    ),
    "marian valid": Foreign(
        line=lambda r: (
            f"[2019-05-01 10:00:00] Ep. {r.e + 1} : Up. {1000 * r.i + 1000} : Sen. {63040 * r.i:,}"
            f" : Cost {r.loss} : Time 45.04s : 9145.67 words/s : L.r. {r.lr:.4e}"
            + held_out(
                r,
                f"[2019-05-01 10:00:00] [valid] Ep. {r.e + 1} : Up. {1000 * r.i + 1000} :"
                f" cross-entropy : {r.val} : new best",
            )
        ),
        first=1000,
        gap=1000,
        lr=True,
        num_val=4,
    ),
}
