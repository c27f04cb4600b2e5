"""What the settings are called in the wild, as data: squashed key → fact, with how sure that is.

A *fact* is what a key states, before it is brought to canonical units: `warmup_ratio`,
`micro_batch`, `mlp_ratio` are facts; the settings of `Settings` are computed from them. Keys are
compared without case and separators (`num_layers`, `--num-layers`, `numLayers` are `numlayers`).
Collected from the option lists of Megatron-LM, DeepSpeed, transformers, fairseq, OLMo, composer,
levanter, torchtitan, nanotron, MaxText, EasyLM, t5x, PaddleNLP, MindFormers, ColossalAI, xtuner,
torchtune, RWKV-LM, nanoGPT and others.
"""

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["FACTS", "Fact"]


@dataclass(frozen=True)
class Fact:
    """How a fact is recognised when the framework is not known."""

    strong: str
    """Squashed keys that mean it wherever they stand."""
    weak: str = ""
    """Squashed keys that mean it only under a fitting parent, or where nothing better is found."""
    kind: str = "number"
    """number, count, share (0 to 1), flag, bool (a flag that is never a number), text, pair,
    duration, precision, any."""
    low: float = 0.0
    high: float = 1e18
    group: str = "any"
    """Part of the config it belongs to: model, optimizer, schedule, batch, precision, layout, any.
    """


FACTS: Mapping[str, Fact] = {
    # shape
    "hidden": Fact(
        "hiddensize hiddendim dmodel nembd embdim embeddim modeldim dimmodel hiddenunits"
        " embeddingdim nembed embedsize decoderembeddim encoderembeddim modeldimension hiddenwidth"
        " residualdim transformerdim nembeddings embeddingsize hiddenstatesize adim attentiondim"
        " modelwidth emb basemodeldim  modeldims bertdim modelhiddensize nhidden",
        "dim ndim width embd hiddendims embeddingsize channels outputsize  hidden units nchannels",
        "count",
        8,
        100_000,
        "model",
    ),
    "layers": Fact(
        "numlayers nlayers nlayer numhiddenlayers nlayers decoderlayers numdecoderlayers"
        " ndecoderlayers numtransformerlayers numblocks nblocks nblock layernum numlayer"
        " transformerlayers ndeclayers decoderdepth transformerdepth dlayers numhidden hiddenlayers"
        " encoderlayers numencoderlayers elayers eblocks layercount totallayers modeldepth"
        " decoderblocks dblocks transformerblocks textdecoderlayers numtransformerblocks",
        "layers depth blocks ",
        "count",
        1,
        2000,
        "model",
    ),
    "heads": Fact(
        "numattentionheads nheads nhead numheads attentionheads numattnheads numqueryheads nqheads"
        " numqheads decoderattentionheads nattentionheads attnheads headcount numattentionhead"
        " headsnum aheads encoderattentionheads ndecoderheads decoderheads nattnheads"
        " numselfattentionheads transformerheads queryheads numheadsq attentionheadnum nqueryheads",
        "heads headnum numhead",
        "count",
        1,
        2000,
        "model",
    ),
    "kv_heads": Fact(
        "numkeyvalueheads numkvheads nkvheads kvheads numquerygroups nkvhead nquerygroups"
        " numkeyvaluehead nlocalheads kvnheads multiqueryattentionnumheads numkvattentionheads"
        " numkvheadsattention nkheads nkeyvalueheads multiquerygroupnum kvheadnum numkvhead"
        " numkeyvalue keyvalueheads querygroups numkvattentionhead nkv querygroupcount numheadskv"
        " numquerygroup",
        "",
        "count",
        1,
        2000,
        "model",
    ),
    "head_dim": Fact(
        "headdim kvchannels dhead headsize dimhead attentionheaddim headdims dkv attentionheadsize"
        " dimperhead qkheaddim sizeperhead perheaddim headchannels",
        "",
        "count",
        4,
        4096,
        "model",
    ),
    "ffn": Fact(
        "innerhiddensize ffnhiddensize intermediatesize ffndim intermediatedim ffnembeddim dff"
        " mlpdim ffnsize ffnhidden ninner mlphiddensize mlphiddendim ffndimension ffdim"
        " feedforwarddim ffnhiddendim decoderffnembeddim feedforwardsize dimff nintermediate"
        " feedforwardhiddendim ffwdim intermediate ffninnerdim mlpsize ffhiddensize filtersize"
        " dimfeedforward dimffn elinearunits linearunits encoderffnembeddim dinner innerdim"
        " ffnwidth ffninnersize ffnintermediatesize mlpintermediatesize feedforwarddims"
        " hiddendimffn mlpwidth ffninner intermediatedims ffhidden dffn ffintermediatesize"
        " decoderffndim ff",
        "ffn innersize mlp hiddendims",
        "count",
        8,
        1_000_000,
        "model",
    ),
    "mlp_ratio": Fact(
        "expandratio mlpratio expansionratio ffnratio mlpexpansion ffnmult ffmult expansionfactor"
        " mlpexpansionratio ffnexpansion ffnexpansionratio mlpexpansionfactor mlpmult"
        " feedforwardmultiplier mlpfactor mlpscale ffexpansion ffnexpansionfactor mlpratioffn"
        " widenfactor ffratio wideningfactor",
        "",
        "number",
        0.2,
        64,
        "model",
    ),
    "ffn_multiplier": Fact(
        "ffndimmultiplier hiddendimmultiplier ffnmultiplier", "", "number", 0.1, 16, "model"
    ),
    "multiple_of": Fact(
        "multipleof ffnmultipleof intermediatemultipleof ffndimmultipleof mlpmultipleof",
        "",
        "count",
        1,
        65536,
        "model",
    ),
    "vocab": Fact(
        "vocabsize nvocab numvocab vocabularysize vocabnum ntokens numtokens numembeddings vocablen"
        " vocabdim tokenizervocabsize embeddingrows vocabsizes origvocabsize numwords orgvocabsize",
        "vocab",
        "count",
        16,
        5_000_000,
        "model",
    ),
    "vocab_padded": Fact(
        "embeddingsize paddedvocabsize vocabsizepadded embeddingrowspadded padvocabsizeto",
        "",
        "count",
        25_000,
        5_000_000,
        "model",
    ),
    "pad_vocab_to": Fact(
        "makevocabsizedivisibleby padvocabsizemultiple padvocabtomultipleof padtomultipleofvocab",
        "",
        "count",
        1,
        65536,
        "model",
    ),
    "seq": Fact(
        "seq ctx taskfeaturelengthsinputs seqlens nseq seqlength seqlen sequencelength maxseqlen"
        " maxseqlength sequencelen contextlength blocksize ctxlen nctx tokenspersample"
        " maxsequencelength cutofflen maxlength contextsize trainseqlen maxtargetlength maxlen"
        " contextlen chunksize maxtokenlength trainseqlength encoderseqlength blocklen samplelength"
        " maxsourcepositions modelmaxlength windowsize contextwindow maxseqlentrain trainingseqlen"
        " packedlength packlength maxcontextlength trainsequencelength decoderseqlength"
        " ntokenspersample packedseqlen tokenizedlength numtokenspersequence tokenspersequence"
        " sequencesize packingsize datasequencelength inputlength maxinputlength seql",
        " length  numsteps",
        "count",
        8,
        20_000_000,
        "any",
    ),
    "max_positions": Fact(
        "maxpositionembeddings maxpositions npositions maxpositionembedding maxtargetpositions"
        " maxposition maxposembeddings maxpos maxseqlenpos maxpositionid",
        "",
        "count",
        8,
        20_000_000,
        "model",
    ),
    "experts": Fact(
        "numexperts nroutedexperts numlocalexperts numroutedexperts moenumexperts nexperts nexpert"
        " numexpert expertnum moeexperts nummoeexperts moenumrouted routedexperts expertcount"
        " expertsnum numberofexperts totalexperts nmoeexperts",
        "experts",
        "count",
        0,
        100_000,
        "model",
    ),
    "layer_pattern": Fact("hybridoverridepattern hybridlayerpattern", "", "text", group="model"),
    "moe_ffn": Fact(
        "moeintermediatesize moeffnhiddensize expertffnhiddensize expertintermediatesize moeffndim"
        " basemoemlpdim moehiddendim moehiddensize moeinterdim",
        "",
        "count",
        8,
        1_000_000,
        "model",
    ),
    "topk": Fact(
        "moeroutertopk numexpertspertok numexpertspertoken numexpertspertoks moetopk"
        " expertspertoken numactivatedexperts nactivatedexperts routertopk",
        "",
        "count",
        1,
        10_000,
        "model",
    ),
    "tied": Fact(
        "tiewordembeddings weighttying tieembeddings tiedembeddings shareembeddings"
        " sharedecoderinputoutputembed tiewordembedding shareembeddingsandoutputweights tieweights"
        " weighttied tieemb tiedwordembeddings tieembedding logitsviaembedding shareembedding"
        " tieembeddingsandlmhead tiedembedding tielmhead tieweight weighttyinginputoutput"
        " sharealldembeddings tieinputoutputembeddings shareinputoutputembed"
        " shareinputoutputembeddings sharedembeddings embeddingsharing useshareembedding"
        " useshareembeddings tiedweights tieencoderdecoder shareembeddingweights tieoutputembedding"
        " tieembed tiewte",
        "",
        "flag",
        0,
        1,
        "model",
    ),
    "untied": Fact(
        "notieembedlogits notieembeddings untieembeddingsandoutputweights noweighttying"
        " untieembeddings untie",
        "",
        "flag",
        0,
        1,
        "model",
    ),
    "params": Fact(
        "nparams numparams numparameters modelparams nparameters parametercount totalparams",
        "",
        "number",
        1e5,
        1e14,
        "model",
    ),
    # architecture
    "qk_norm": Fact(
        "qklayernorm qknorm useqknorm attentionlayernorm qkln normalizeqk queryknorm useqkln"
        " qknormalization enableqknorm qkrmsnorm attnqknorm normqk querykeynorm querykeylayernorm"
        " useqklayernorm attentionqknorm",
        "",
        "any",
        0,
        1,
        "model",
    ),
    "embed_norm": Fact(
        "embedlayernorm layernormembedding embeddinglayernorm postembednorm embednorm"
        " wordembeddingslayernorm normembeddings useembeddingnorm embedln embeddingnorm"
        " wordembedlayernorm stableembedding",
        "",
        "flag",
        0,
        1,
        "model",
    ),
    "norm": Fact(
        "normalization normtype layernormtype normalizationtype normclass norm normclassname"
        " layernorm normlayer normlayertype",
        "",
        "text",
        group="model",
    ),
    "activation": Fact(
        "gluactivation hiddenact activationfunction activation activationfn activationtype"
        " hiddenactivation mlpactivations mlpactivation acttype actfn ffntype ffnactivation"
        " nonlinearity activationfunc ffnacttype mlpact ffact mlptype mlpclass mlpclassname"
        " ffnactfn feedforwardproj ffntypes hiddenactfn actfunction activationname ffnact activ",
        "act",
        "text",
        group="model",
    ),
    "gated": Fact(
        "swiglu geglu reglu useswiglu gatedlinearunit gatedmlp gatedffn useglu useswiglumlp glu"
        " gated gatedlinearunits ffnglu mlpglu gatedact isgatedact useggatedmlp usegatedmlp"
        " gatedfeedforward gatedactivation usegatedffn enableswiglu ffngated usegeglu gateproj"
        " mlpgated",
        "",
        "flag",
        0,
        1,
        "model",
    ),
    "position": Fact(
        "positionembeddingtype posemb positionembedding positionalembedding positiontype posembtype"
        " posenc poscoding positionembeddings positionalembeddingtype positionalencoding"
        " posencoding posembedding positionencodingtype posencodingtype",
        "",
        "text",
        group="model",
    ),
    "rotary": Fact(
        "rope userotarypositionembeddings userotary rotary useropepositionembedding userotaryemb"
        " userope rotaryemb",
        "",
        "flag",
        0,
        1,
        "model",
    ),
    "alibi": Fact("alibi usealibi", "", "flag", 0, 1, "model"),
    "dropout": Fact(
        "hiddendropout dropout residpdrop residualdropout hiddendropoutprob dropoutrate"
        " residdropout hiddendropoutrate dropoutp resdropout dropoutprob hiddendropoutp pdrop",
        "",
        "share",
        0,
        1,
        "model",
    ),
    "attention_dropout": Fact(
        "attentiondropout attnpdrop attentionprobsdropoutprob attndropout attentiondropoutrate"
        " attentionprobsdropoutrate attentiondropoutprob",
        "",
        "share",
        0,
        1,
        "model",
    ),
    "embedding_dropout": Fact(
        "embeddingdropout embpdrop embdpdrop embeddropout embdropout", "", "share", 0, 1, "model"
    ),
    "softcap_attention": Fact(
        "attnlogitsoftcapping attnlogitsoftcap attentionlogitsoftcap attentionsoftcap",
        "",
        "number",
        0,
        1e4,
        "model",
    ),
    "softcap_final": Fact(
        "finallogitsoftcapping finallogitsoftcap logitssoftcap finallogitssoftcap logitsoftcap"
        " logitssoftcapping",
        "",
        "number",
        0,
        1e4,
        "model",
    ),
    "z_loss": Fact(
        "zloss zlossweight zlossmultiplier zlosscoeff zlosscoefficient auxiliarylossmultiplier"
        " softmaxauxiliaryloss zlosscoef lmzlossweight zlossfactor zlossalpha outputzloss"
        " outputzlossweight lmheadzloss lossz maxzweight logitzloss softmaxzloss cezloss"
        " logitszlosscoef crossentropyzloss lmzloss zlossscale useszloss zlosslambda zlossratio",
        "",
        "number",
        0,
        10,
        "any",
    ),
    "z_loss_on": Fact(
        "zlossenabled usezloss enablezloss withzloss dozloss", "", "flag", 0, 1, "any"
    ),
    "router_aux_loss": Fact(
        "moeauxlosscoeff moeauxlosscoef routerauxlosscoef routerauxlosscoeff moeauxlossweight"
        " loadbalancinglossweight auxlosscoef auxlosscoeff auxlossalpha",
        "",
        "number",
        0,
        1e3,
        "model",
    ),
    "router_bias": Fact(
        "moerouterenableexpertbias enableexpertbias routingbias useroutingbias"
        " moeuseauxfreebalancing auxlossfree useauxfree auxfree",
        "",
        "flag",
        0,
        1,
        "model",
    ),
    "uneven_pipeline": Fact(
        "decoderfirstpipelinenumlayers decoderlastpipelinenumlayers numlayersinfirstpipelinestage"
        " numlayersinlastpipelinestage pipelinemodelparallellayout"
        " accountforembeddinginpipelinesplit accountforlossinpipelinesplit pipelinelayerdivision"
        " standaloneembeddingstage pipelinestageslayers",
        "",
        "any",
        group="layout",
    ),
    "save_to": Fact("", "", "text", group="any"),
    "saving": Fact("enablecheckpoint checkpointenable savestrategy", "", "any", group="any"),
    "half_weights": Fact("weightsinhalf", "", "flag", group="precision"),
    "router_z_loss": Fact(
        "moezlosscoeff routerzlosscoef routerzlossweight moezloss routerzloss moezlossweight"
        " zlosscoefrouter moerouterzlosscoeff",
        "",
        "number",
        0,
        10,
        "model",
    ),
    # init
    "init_std": Fact(
        "megatroninitsigma initializerstandarddev initializersigma initmethodstd initializerrange"
        " initstd weightinitstd initscale initrange initializerstd initsigma stdinit paraminitstd"
        " initstdev initializationstd parametersinitstd initializerstandarddeviation initnormalstd"
        " initbasestd initwstd weightsinitstd initializerstddev initstddev initmethodsigma"
        " weightinitstddev linearinitstd",
        "",
        "number",
        0,
        10,
        "model",
    ),
    "init_scheme": Fact(
        "initmethod initfn initializer initfunction paraminitfn initmethodtype weightinit initname"
        " paraminit initstyle initscheme weightinitialization initfunctype inittype",
        "init",
        "text",
        group="model",
    ),
    "init_std_output": Fact(
        "outputlayerinitializerstd outputinitmethodstd outputinitstd outputlayerinitstd"
        " initstdoutput",
        "",
        "number",
        0,
        10,
        "model",
    ),
    "embedding_scale": Fact(
        "embeddingmultiplier embeddingscale scaleemb embscale inputembscale embmultiplier",
        "",
        "number",
        0,
        1e5,
        "model",
    ),
    # optimizer
    "optimizer": Fact(
        "optimizer optimizername optimizertype opttype optim optimtype optimname optname"
        " optimizercls optimizerclass",
        "name type cls target class component opt",
        "text",
        group="optimizer",
    ),
    "lr": Fact(
        "lr learningrate peaklr maxlr baselr  baselearningrate peaklearningrate learningratemax"
        " lrmax  targetlr lrpeak maxlearningrate  adamwlr adamlr optimlr   lrbase defaultlr mainlr"
        " learningratepeak lrfloat optimizerlr learnrate trainlr  adamlearningrate schedulerlr"
        " lrate stablelr highlr matrixlr toplr",
        "rate eta initlr initiallr lrinit initiallearningrate",
        "number",
        0,
        100,
        "optimizer",
    ),
    "min_lr": Fact(
        "lrcooldownend cooldownlr minlr lrmin minlearningrate mindecaylr finallr endlearningrate"
        " lrend etamin finallearningrate lrfinal endlr minimumlr learningrateend"
        " minimumlearningrate learningratefinal learningratemin lowestlr schedfloor schedulerfloor"
        " learningrateminimum decaylr decayedlr targetminlr lrfloor endinglr",
        "",
        "number",
        0,
        100,
        "schedule",
    ),
    "min_lr_ratio": Fact(
        "lrcosminratio minlrratio alphaf minlrfactor lrminratio learningratefinalfraction minlrrate"
        " finallrratio finallrfraction lrminfactor minratio lrdecayratio cosineminratio minlrfrac"
        " minlrfraction finallrfrac minlrpct lrfinalratio endlrratio lrendratio"
        " learningrateminratio decayminratio finallrscale minlrscale minlearningrateratio"
        " finalratio alphamin minlrmult endfactor finallrfactor learningratefinalratio"
        " lrminfraction minfactor minlrmultiplier",
        "alpha",
        "share",
        0,
        1,
        "schedule",
    ),
    "schedule": Fact(
        "lrdecaystyle lrschedulertype lrscheduler scheduler schedule lrschedule schedulertype"
        " lrscheduletype schedulername decaytype lrdecay lrdecaytype learningratescheduler"
        " learningrateschedule schedulefn lrpolicy learningrateschedulername decaystyle"
        " schedulertypename lrdecaymode lrscheduletypes lrschedulername decayfn lrscheduleroption",
        "name type cls target class",
        "text",
        group="schedule",
    ),
    "warmup_steps": Fact(
        "warmupgradsteps lrcoswarmup annealwarmup warmupsteps lrwarmupsteps lrwarmupiters"
        " numwarmupsteps warmupiters warmupupdates warmupnumsteps nwarmupsteps warmupiterations"
        " warmupstep lrwarmupstep warmupiter warmupiteration warmupnum twarmup warmupbatches"
        " linearwarmupsteps warmupsize totalwarmupsteps learningratewarmupsteps stepswarmup"
        " lrwarmupiterations warmupinsteps lrwarmupnumsteps nwarmup warmuplength"
        " schedulewarmupsteps lrwarmupupdates numwarmupupdates warmuptrainsteps warmupepochsteps"
        " linearwarmupiters warmupnumiters warmupnumupdates",
        "",
        "duration",
        0,
        1e9,
        "schedule",
    ),
    "warmup": Fact(
        "warmup lrwarmup warmupduration warmuptime learningratewarmup linearwarmup warmuplen"
        " warmuplr",
        "",
        "duration",
        0,
        1e15,
        "schedule",
    ),
    "warmup_samples": Fact(
        "lrwarmupsamples warmupsamples lrwarmupexamples warmupexamples",
        "",
        "duration",
        0,
        1e13,
        "schedule",
    ),
    "warmup_tokens": Fact(
        "lrwarmuptokens warmuptokens warmupnumtokens tokenswarmup numwarmuptokens nwarmuptokens",
        "",
        "duration",
        0,
        1e15,
        "schedule",
    ),
    "warmup_ratio": Fact(
        "warmupratio lrwarmupfraction warmupfraction warmupproportion warmupstepsfraction"
        " lrwarmupratio warmupfrac warmuppct warmuppercent warmupstepsratio warmupprop"
        " warmuppercentage warmuppart warmuprate warmupratios pctstart percwarmup warmupepochratio",
        "",
        "number",
        0,
        100,
        "schedule",
    ),
    "scheduler_lr": Fact("warmupmaxlr schedulerwarmupmaxlr", "", "number", 0, 100, "schedule"),
    "schedule_unit": Fact(
        "schedulerunits twarmupunits schedulerunit", "", "text", group="schedule"
    ),
    "decay_steps": Fact(
        "totalnumupdate annealsteps lrdecayiters lrdecaysteps decaysteps lrdecaystyleiters"
        " cosinesteps lrdecayiter numdecaysteps decayiters learningrateschedulesteps maxlrsteps"
        " lrmaxsteps decaylrsteps lrdecaymaxsteps tmax",
        "",
        "duration",
        1,
        1e16,
        "schedule",
    ),
    "beta1": Fact(
        "beta1 adambeta1 adamb1 b1 optimizerbeta1 adamwbeta1 optimbeta1",
        "",
        "share",
        0,
        1,
        "optimizer",
    ),
    "beta2": Fact(
        "beta2 adambeta2 adamb2 b2 optimizerbeta2 adamwbeta2 optimbeta2",
        "",
        "share",
        0,
        1,
        "optimizer",
    ),
    "betas": Fact(
        "betas adambetas adamwbetas optimizerbetas optimbetas adamwoptimizerbetas adambeta",
        "",
        "pair",
        0,
        1,
        "optimizer",
    ),
    "eps": Fact(
        "eps adameps epsilon adamepsilon adamweps optimizereps optimizerepsilon adamwepsilon"
        " optimeps epsadam epsopt",
        "",
        "number",
        0,
        1,
        "optimizer",
    ),
    "weight_decay": Fact(
        "weightdecay wd l2reg decoupledweightdecay weightdecayrate adamwweightdecay adamweightdecay"
        " weightdecaycoef l2weightdecay optimizerweightdecay weightdecayfactor weightdecaycoeff"
        " weightdecayval",
        "decay",
        "number",
        0,
        100,
        "optimizer",
    ),
    "clip": Fact(
        "gradclipthresh clipthresh clipgradientnormtovalue clipgrad gradientclipping maxgradnorm"
        " gradientclipval gradclip clipnorm gradclipnorm clipgradnorm gradclipping gradientclip"
        " maxnorm clipgradient gradientclippingthreshold clippingthreshold gradientclipnorm"
        " clipgradmaxnorm clip gradnormclip gradclipval gradientclipvalue maxgradientnorm"
        " globalclipnorm clipgradients gradnorm gradclipvalue clipgradientnorm"
        " gradientclipglobalnorm maxgradnorms gradnormclipping clipglobalnorm gradclipmaxnorm"
        " clipbyglobalnorm gradientmaxnorm gradientnormclip gradientnorm clipvalue"
        " gradnormthreshold gradclipthreshold globalnorm clipbynorm gradmaxnorm clipthreshold"
        " gradnormmax maxclipnorm clippingnorm gradientnormclipping gradientnormthreshold"
        " clipgradbynorm",
        "",
        "number",
        -2,
        1e6,
        "optimizer",
    ),
    # batch and length
    "clip_on": Fact(
        "gradientclipping useclipgrad gradclipping enablegradclip clipgrad gradclip usegradclip"
        " enablegradientclipping",
        "",
        "bool",
        group="optimizer",
    ),
    "batch_global": Fact(
        "effectivebsz globalbatchsize globaltrainbatchsize trainbatchsize totalbatchsize gbs"
        " effectivebatchsize totaltrainbatchsize globalbs globalbatch batchsizeglobal globalbsz"
        " targetbatchsize trainglobalbatchsize totalbatch fullbatchsize trainbsz realbatchsize"
        " trainglobalbs",
        "",
        "any",
        1,
        1e9,
        "batch",
    ),
    "batch": Fact(
        "batchsizetraining batchsize bsz bs batch trainingbatchsize examplesperbatch trainbs"
        " batchsz nbatch sentencesperbatch maxsentences batchsizetrain numsamplesperbatch",
        " size",
        "any",
        1,
        1e9,
        "batch",
    ),
    "batch_tokens": Fact(
        "batchsizetokens tokensperbatch batchtokens globalbatchtokens tokensperstep"
        " globalbatchsizetokens globalbatchsizeintokens batchsizeintokens globaltokens"
        " ntokensperbatch numtokensperbatch tokensperiteration tokensperiter totalbatchtokens"
        " trainbatchtokens tokensperupdate totalbatchsizetokens batchnumtokens globaltokensperbatch"
        " numtokensperstep desiredbatchsize tokenperbatch",
        "",
        "number",
        1,
        1e10,
        "batch",
    ),
    "micro_tokens": Fact(
        "maxtokens devicebatchtokens rankmicrobatchsize microbatchtokens maxtokensperbatch"
        " maxnumtokens maxtokenspergpu rankmicrobatchtokens",
        "",
        "number",
        16,
        1e9,
        "batch",
    ),
    "micro_batch": Fact(
        "trainbatchsize0 percorebatchsize perreplicabatch deviceminibatchsize microbatchsize"
        " perdevicetrainbatchsize trainmicrobatchsizepergpu perdevicebatchsize  microbsz"
        " devicebatchsize batchsizepergpu mbs microbs microtrainbatchsize perdevicetrain"
        " batchsizeperdevice microbatch samplespergpu perreplicabatchsize trainbatchsizeperdevice"
        " pergputrainbatchsize batchpergpu perdeviceparallelism batchsizeperrank"
        " minibatchsizeperdevice trainmicrobatchsize devicetrainbatchsize trainbatchsizepergpu"
        " batchsizepertpu batchsizeperreplica perdevicetrainbs batchsizeperdp perhostbatchsize"
        " realbatchsizeperrank microbatchsizepergpu ppermicrobatch perrankbatchsize runnerbatchsize"
        " batchperdevice samplesperdevice micros batchesperdevice",
        "",
        "number",
        0,
        1e7,
        "batch",
    ),
    "local_batch": Fact("localbatchsize localbs", "", "number", 1, 1e7, "batch"),
    "micro_num": Fact(
        "micronum batchaccumulationperreplica nummicrobatches micronumbatches microbatchnum"
        " microbatchesnum batchaccumulation",
        "",
        "count",
        1,
        1e6,
        "batch",
    ),
    "grad_accum": Fact(
        "gradaccumulationnumbatches accum gradientaccumulationsteps gradaccumsteps updatefreq"
        " gradaccum gradientaccumulation accumulategradbatches gradaccsteps accumulationsteps"
        " gradientaccumulationiters accumulativecounts gradacc accumsteps accumulategrad"
        " gradientaccumulationstep gradaccumulationsteps accumgrad gradientaccumulations accumfreq"
        " gradientaccum gradientaccsteps gradaccumulation accumulation numaccumulationsteps"
        " accumstep gradaccumiters accgrad accumulateallreducegrads gradientaccumulationfactor"
        " accumulatesteps gradientaccumulatesteps gradaccumulate",
        "",
        "any",
        1,
        1e6,
        "batch",
    ),
    "batch_start": Fact(
        "batchsizestart startbatchsize initialbatchsize minbatchsize rampupbatchsizestart",
        "",
        "number",
        1,
        1e9,
        "batch",
    ),
    "ramp": Fact("rampupbatchsize batchsizerampup", "", "any", group="batch"),
    "train_steps": Fact(
        "numtrainingupdates trainiter trainiters maxsteps trainsteps numtrainsteps numsteps"
        " maxupdate totalsteps maxiters numiterations trainingsteps totaltrainsteps maxtrainsteps"
        " numtrainingsteps maxupdates totaliters totaliterations maxiterations trainiterations"
        " totaltrainingsteps numupdates iterations maxiter numiters maxstep trainstep totalstep"
        " trainnumsteps maxtrainingsteps niters nsteps trainmaxsteps totalupdates stopstep"
        " numtrainiters maxtrainiters totaltrainstep trainmaxiters maxnumupdates numtrainupdates"
        " nupdates totalupdatenum totaltrainingiters numtrainingiterations numtotalsteps steptotal"
        " schedtotal schedulertotal scheduletotal",
        "steps iters updates",
        "duration",
        1,
        1e10,
        "any",
    ),
    "duration": Fact(
        "maxduration duration maxtrainduration trainduration trainingduration traintime"
        " trainlength",
        "",
        "duration",
        0,
        1e16,
        "any",
    ),
    "train_samples": Fact(
        "trainsamples maxsamplestrain totalsamples trainnumsamples totaltrainsamples"
        " numtrainsamples numtrainexamples",
        "",
        "number",
        1,
        1e13,
        "any",
    ),
    "train_tokens": Fact(
        "numtokens ntrainingtokens traintokens maxtraintokens totaltokens trainingtokens"
        " numtraintokens trainntokens tokenbudget maxtokenstrain totaltraintokens targettokens"
        " trainnumtokens tokencount ntraintokens totaltrainingtokens numtokenstrain tokensbudget"
        " exittokens myexittokens",
        "tokens",
        "duration",
        1e5,
        1e16,
        "any",
    ),
    "epochs": Fact(
        "epochcount numtrainepochs numepochs maxepochs epochs maxepoch trainepochs nepochs"
        " totalepochs numepoch trainingepochs epochcount epochnum",
        "epoch",
        "number",
        1e-6,
        1e6,
        "any",
    ),
    # precision
    "bf16": Fact(
        "bf16 usebf16 bf16enabled bfloat16 enablebf16 trainbf16", "", "flag", 0, 1, "precision"
    ),
    "fp16": Fact(
        "memoryefficientfp16 fp16 usefp16 fp16enabled enablefp16 float16 half",
        "",
        "flag",
        0,
        1,
        "precision",
    ),
    "fp8": Fact(
        "fp8 fp8format fp8hybrid fp8e4m3 enablefp8 usefp8 enablefloat8linear",
        "",
        "any",
        group="precision",
    ),
    "precision": Fact(
        "fp16type fpropdtype precision dtype torchdtype mixedprecision mp modeldtype traindtype"
        " computedtype paramdtype mixedprecisionparam autocastprecision ampdtype trainprecision"
        " mixedprecisiontype precisiontype modelprecision precisiontrain trainingprecision floatx"
        " activationdtype amptype autocastdtype mixedprecisiondtype computeprecision trainingdtype"
        " mixedprecisionmode fp16optlevel16 ptdtype datatype mixedprecisionpolicy dtypestr"
        " activationsdtype floattype mpdtype computationdtype mixprecision jmp floatprecision",
        "amp type",
        "precision",
        group="precision",
    ),
    "reduce_dtype": Fact(
        "mixedprecisionreduce reducedtype gradreducedtype communicationdatatype"
        " mixedprecisionreducedtype gradreduceprecision reductiondtype allreducedtype",
        "",
        "precision",
        group="precision",
    ),
    "reduce_bf16": Fact("gradreduceinbf16", "", "flag", group="precision"),
    "reduce_fp32": Fact(
        "accumulateallreducegradsinfp32 fp32allreduce accumulategradinfp32 gradreduceinfp32"
        " accumulatefp32",
        "",
        "flag",
        group="precision",
    ),
    "optimizer_dtype": Fact(
        "optimizerdtype optimizerstatedtype expavgdtype momentsdtype",
        "",
        "precision",
        group="precision",
    ),
    "loss_scale": Fact(
        "lossscale staticlossscale fixedlossscale", "", "number", 0, 1e12, "precision"
    ),
    "loss_scale_power": Fact("initialscalepower", "", "number", 0, 64, "precision"),
    "loss_scale_init": Fact(
        "initiallossscale nativeampinitscale initialscale fp16initscale initscalefp16 scaleinit"
        " initlossscale initlossscaling lossscaleinit lossscalinginit scalingloss lossscalevalue",
        "",
        "number",
        0,
        1e20,
        "precision",
    ),
    "loss_scale_window": Fact(
        "lossscalewindow nativeampgrowthinterval growthinterval fp16scalewindow scalewindow",
        "",
        "number",
        0,
        1e9,
        "precision",
    ),
    "loss_scale_hysteresis": Fact("hysteresis", "", "number", 0, 1e6, "precision"),
    "loss_scale_min": Fact(
        "thresholdlossscale minlossscale minscale minimumlossscale",
        "",
        "number",
        0,
        1e12,
        "precision",
    ),
    # layout and habits
    "tensor_parallel": Fact(
        "mpdegree coresperreplica tensormodelparallelsize tensorparallelsize tensorparalleldegree"
        " modelparallelsize tpsize tensorparallel tpdegree tensormodelparallel tensormpsize mpsize"
        " modelparallel tensorparallelism",
        "tp",
        "count",
        1,
        1024,
        "layout",
    ),
    "pipeline_parallel": Fact(
        "pipelinemodelparallelsize pipelineparallelsize pipelineparalleldegree pipeparallelsize"
        " ppsize pipelineparallel ppdegree pipelinestage pipelinestages pipelinemodelparallel",
        "pipeline pp",
        "count",
        1,
        1024,
        "layout",
    ),
    "context_parallel": Fact(
        "contextparallelsize contextparalleldegree cpsize contextparallel cpdegree",
        "cp",
        "count",
        1,
        1024,
        "layout",
    ),
    "data_parallel": Fact(
        "dataparallelsize dataparallel dpsize dpdegree dataparalleldegree",
        "dp",
        "count",
        1,
        1e6,
        "layout",
    ),
    "dp_replicate": Fact(
        "dataparallelreplicatedegree dpreplicate", "", "number", -1, 1e6, "layout"
    ),
    "dp_shard": Fact("dataparallelsharddegree dpshard", "", "number", -1, 1e6, "layout"),
    "zero_stage": Fact(
        "zerostage zerooptimizationstage zerolevel zerooptimizerstage zerooptstage",
        "",
        "count",
        0,
        3,
        "layout",
    ),
    "zero_on": Fact(
        "usedistributedoptimizer zero1 usezero1 usezerooptimizer", "", "flag", 0, 1, "layout"
    ),
    "fsdp": Fact(
        "fsdp shardingstrategy fsdptype fsdpshardingstrategy usefsdp fullyshard usetorchfsdp2",
        "",
        "any",
        group="layout",
    ),
    "world_size": Fact(
        "tpusize distributedworldsize worldsize numprocesses numgpus ngpus totalgpus numdevices"
        " devicenum gpucount ngpu gpunum totaldevices numchips numaccelerators devicecount world",
        "gpus",
        "count",
        1,
        1e6,
        "layout",
    ),
    "nodes": Fact("numnodes nnodes nodes nnode numhosts numnode", "", "count", 1, 1e5, "layout"),
    "devices": Fact(
        "ndevicespernode devices nprocpernode gpuspernode ntaskspernode devicespernode"
        " numgpuspernode nprocspernode numgpupernode gpupernode gpusperreplica ngpuspernode"
        " pernodegpus",
        "gres",
        "any",
        1,
        64,
        "layout",
    ),
    "save_steps": Fact(
        "saveinterval savesteps saveevery checkpointinterval saveintervalupdates checkpointevery"
        " checkpointevery saveiters checkpointfactor savefreq saveinterval checkpointsteps"
        " ckptinterval savecheckpointsteps checkpointperiod checkpointfreq savemodelevery"
        " saveeverysteps savecheckpointinterval checkpointfrequency ckptevery",
        "",
        "duration",
        1,
        1e9,
        "any",
    ),
    "eval_steps": Fact(
        "evalinterval evalsteps valcheckinterval stepspereval evalevery evalfreq validationinterval"
        " valinterval validateintervalupdates evaliterations validevery evalperiod validinterval"
        " valeverysteps valevery valfreq evalfrequency",
        "",
        "duration",
        1,
        1e9,
        "any",
    ),
    "seed": Fact(
        "seed randomseed globalseed manualseed torchseed trainseed rngseed",
        "",
        "number",
        0,
        1e12,
        "any",
    ),
    "base_model": Fact(
        "modelnameorpath basemodel pretrainedmodelnameorpath initializefromhf hfpath"
        " pretrainedmodel initializefrom pretrainedcheckpoint  hfmodel modelpath finetunefrom"
        " pretrainedpath pretrainpath loadfrompretrained pretrain pretrained resumefrompretrained"
        " basemodelname pretrainedweights modelnameorpaths hfmodelpath hfmodelname initfromhf"
        " actormodelnameorpath hfmodelid basemodelpath referencecheckpoint pretrainedmodelpath"
        " restorefrompath modelnameorid",
        "model",
        "any",
        group="any",
    ),
    "finetune": Fact("finetune finetuning sft dosft", "", "flag", group="any"),
    "adapter": Fact(
        "traintype adapter tunemmmlpadapter loraenable lorar lorarank finetuningtype uselora peft"
        " usepeft peftscheme peftmethod trainingtype tunertype",
        "",
        "any",
        group="any",
    ),
    "reinit": Fact("reinitweights trainfromscratch fromscratch", "", "flag", group="any"),
    "stage": Fact("stage trainingstage trainstage rlhftype", "", "text", group="any"),
    "pref_beta": Fact(
        "dpobeta prefbeta simpobeta orpobeta ktobeta orpoalpha simpogamma",
        "",
        "number",
        0,
        1e3,
        "any",
    ),
    "loss_type": Fact("losstype dpolosstype prefloss preflosstype", "", "text", group="any"),
    "program": Fact("program", "", "text", group="any"),
    "flavor": Fact(
        "modelspec preset modelvariant modelsize modelid flavor modelflavor",
        "",
        "text",
        group="model",
    ),
    "model_name": Fact(
        "modeltype modelname modelconfig modelconfigpath modelconfigname architectures modelclass"
        " architecture modelfamily",
        "name component target",
        "any",
        group="model",
    ),
}
