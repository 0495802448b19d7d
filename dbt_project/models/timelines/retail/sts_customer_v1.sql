{#- Written by `lakehouse scaffold`, its own while unchanged: 23978d7851d15d09 -#}
{{ cdc_vault.timeline(source_model='sts_customer', src_pk='hk_customer', src_hashdiff='hd_status') }}
