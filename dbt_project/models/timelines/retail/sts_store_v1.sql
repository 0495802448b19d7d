{#- Written by `lakehouse scaffold`, its own while unchanged: 9682019e3ac3526d -#}
{{ timeline(source_model='sts_store', src_pk='hk_store', src_hashdiff='hd_status') }}
